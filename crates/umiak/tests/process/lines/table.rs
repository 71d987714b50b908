//! The lines. Interpreters are written `python`, and shell variables are replaced by a typical value.

/// How Paddle 3.3.1 handles a line.
pub(super) enum By {
    /// It runs the same.
    Same,
    /// It does not run the line, for this reason. Earlier releases may.
    Nobody(&'static str),
    /// It runs something else, for this reason.
    Other { runs: &'static str, why: &'static str },
}

/// A line and its result: the devices of each rank (`-` on CPU), the number of processes of each role, or the error
/// code.
pub(super) struct Line {
    pub(super) typed: &'static str,
    pub(super) runs: &'static str,
    pub(super) paddle: By,
}

const fn same(typed: &'static str, runs: &'static str) -> Line {
    Line { typed, runs, paddle: By::Same }
}

const fn nobody(typed: &'static str, runs: &'static str, why: &'static str) -> Line {
    Line { typed, runs, paddle: By::Nobody(why) }
}

const fn other(typed: &'static str, runs: &'static str, paddle: &'static str, why: &'static str) -> Line {
    Line { typed, runs, paddle: By::Other { runs: paddle, why } }
}

const EIGHT: &str = "0 1 2 3 4 5 6 7";
const VALUE: &str = "an unknown flag takes no value, so the next word is the script";

pub(super) const LINES: &[Line] = &[
    // One node, all devices or a list.
    same("python -m paddle.distributed.launch train.py", EIGHT),
    same("CUDA_VISIBLE_DEVICES=0,1 python -m paddle.distributed.launch train.py", "0 1"),
    same("python -m paddle.distributed.launch --gpus 0,1,2,3,4,5,6,7 train_script", EIGHT),
    same(
        "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 python -m paddle.distributed.launch --gpus=\"0,1,2,3,4,5,6,7\" train.py --data-path /paddle/data/ILSVRC2012 --lr 0.01 --batch-size 32 --output-dir ./output/ --epochs 120",
        EIGHT,
    ),
    same(
        "python -u -m paddle.distributed.launch --log_level=CRITICAL --gpus \"0\" --log_dir \"recall_log/\" infer_and_search.py --device gpu",
        "0",
    ),
    same(
        "python -m paddle.distributed.launch --log_dir=./debug/ --gpus '0' tools/train.py -c configs/det/det_mv3_db.yml",
        "0",
    ),
    same("python -m paddle.distributed.launch --log_dir=./mylog --gpus=0,1,2,3 train.py", "0 1 2 3"),
    same(
        "python -m paddle.distributed.launch --gpu 0,1,2,3 standalone.py run --arch 1322221222220000 --batch_size 1024",
        "0 1 2 3",
    ),
    same("python -um paddle.distributed.launch --gpu 0 pretrain.py run --backbone resnet48 --lr 0.001", "0"),
    same(
        "python -m paddle.distributed.launch --run_mode collective --gpus 2,3,6,7 dist_train.py --model_name TransE --batch_size 1000",
        "2 3 6 7",
    ),
    same("python -m paddle.distributed.launch --devices=0,1,2,3 train.py --lr=0.01", "0 1 2 3"),
    same(
        "python -m paddle.distributed.launch --devices '0,1,2,3,4,5,6,7' --log_dir ./log_finetune/slim_lora finetune_generation.py llama/lora.json",
        EIGHT,
    ),
    same(
        "CUDA_VISIBLE_DEVICES=0,1 python -m paddle.distributed.launch --devices 0,1 --job_id Replicate dist_Replicate.py",
        "0 1",
    ),
    same("python -m paddle.distributed.launch --devices \"3,4\" test_llama.py", "3 4"),
    same(
        "PYTHONPATH=.:./src python -m paddle.distributed.launch --devices 0,1 tests/multi_card_tests/test_indexcache_pipeline.py",
        "0 1",
    ),
    same(
        "python -m paddle.distributed.launch --log_level DEBUG --gpus 0,1,2,3,4,5,6,7 --log_dir output/x_log train_qwen_fine_graine.py --output_dir ./out",
        EIGHT,
    ),
    same("python -m paddle.distributed.launch --xpus \"0\" run_pretrain.py --model_type bert --use_amp False", "0"),
    same("python -m paddle.distributed.launch --xpus \"0,1,2,3,4,5,6,7\" run_paddle.py -json x.json", EIGHT),
    // A number of processes.
    same(
        "python -m paddle.distributed.launch --nproc_per_node 8 run_pretrain_dist.py --dataloader_num_workers=2 --per_device_train_batch_size 16",
        EIGHT,
    ),
    same(
        "python -m paddle.distributed.launch --nproc_per_node 1 pretrain.py --model_path m --data_path d --use_swanlab",
        "0+1+2+3+4+5+6+7",
    ),
    same("python -m paddle.distributed.launch --nproc_per_node 2 --gpus 0,1,2,3 train.py", "0 1"),
    same("python -m paddle.distributed.launch --nproc_per_node 0 --gpus 4,5 train.py", "4 5"),
    same("python -m paddle.distributed.fleet.launch --nproc_per_node 2 --gpus 0,1,2,3 train.py", "0+1 2+3"),
    same(
        "python -m paddle.distributed.launch --nproc_per_node 4 --backend \"gloo\" train.py --dataset_dir data --device cpu --early_stop --epochs 1",
        "- - - -",
    ),
    same(
        "python -m paddle.distributed.launch --nproc_per_node=8 --backend='gloo' train.py --device cpu --save_dir ./checkpoint",
        "- - - - - - - -",
    ),
    same(
        "python -m paddle.distributed.launch --nnodes=1 --nproc_per_node=1 --use_env train_image_generation_dit_notrainer.py --dit_config_file config/DiT_XL_patch2.json",
        "0+1+2+3+4+5+6+7",
    ),
    // Names used by Fleet.
    same("fleetrun --gpus 0,1 train_dyn_rnn.py --num_epochs=1 --enable_ce --batch_size=16", "0 1"),
    same("fleetrun --gpus=0,1 paddlemix/examples/blip2/run_eval_vqav2_zeroshot.py --num_train_epochs 1", "0 1"),
    same("fleetrun --gpus=0,1,2,3,4,5,6,7 train_fleet_static_communication_topology.py", EIGHT),
    same("CUDA_VISIBLE_DEVICES=0,1 fleetrun train_distributed_gpu.py", "0 1"),
    same(
        "PYTHONPATH=../../../ python -u -m paddle.distributed.fleet.launch --gpus 1 --log_dir \"output/gpt/log\" run_pretrain_static.py --model_type gpt2",
        "1",
    ),
    same(
        "python -u -m paddle.distributed.fleet.launch --gpus 0,1 collective_allreduce_op.py c_allreduce_sum fp16",
        "0 1",
    ),
    same(
        "python -m paddle.distributed.fleet.launch --run_mode=collective tools/train.py -c configs/yolov3_darknet_roadsign.yml -o use_npu=True",
        EIGHT,
    ),
    // Flags of 1.x that later releases do not know or have dropped.
    same("python -m paddle.distributed.launch --selected_gpus='0,1' train.py", "0 1"),
    same(
        "python -m paddle.distributed.launch --selected_gpus 0,1,2,3,4,5,6,7 tools/train.py --fp16 -c configs/faster_rcnn_r50_fpn_1x.yml",
        EIGHT,
    ),
    same(
        "python -m paddle.distributed.launch --selected_gpus=\"0,1,2,3\" --log_dir=log_tsm.pptsm main.py --validate -c configs/pptsm.yaml",
        "0 1 2 3",
    ),
    same(
        "python -m paddle.distributed.launch --log_dir=../logs/ --selected_gpu 0,1,2,3,4,5,6,7 tools/train.py -c ./configs/gfl.yml --eval",
        EIGHT,
    ),
    same(
        "python -m paddle.distributed.launch --started_port=9785 --selected_gpus=0,1,2,3 --log_dir ./mylog train.py --use_data_parallel=1",
        "0 1 2 3",
    ),
    same(
        "python -m paddle.distributed.launch --started_port=9785 --log_dir=./mylog train.py --use_data_parallel=1",
        EIGHT,
    ),
    same("python -m paddle.distributed.launch --use_paddlecloud frame/core/gpu_trainer.py --conf_file c.conf", EIGHT),
    same(
        "python -m paddle.distributed.launch --use_paddlecloud=True frame/core/gpu_trainer.py --conf_file c.conf",
        EIGHT,
    ),
    same("python -m paddle.distributed.launch --cluster_node_ips=127.0.0.1 --node_ip=127.0.0.1 train.py", EIGHT),
    nobody(
        "python -m paddle.distributed.launch --started_port 9999 --selected_gpus=0,1,2,3 --log_dir ./mylog train.py --use_data_parallel 1",
        "0 1 2 3",
        VALUE,
    ),
    nobody(
        "CUDA_VISIBLE_DEVICES=0,1,2,3 python -m paddle.distributed.launch --started_port 38989 --log_dir ./mylog.ucf101.frames tsm.py --config=./tsm_ucf101.yaml --use_gpu=True",
        "0 1 2 3",
        VALUE,
    ),
    nobody(
        "CUDA_VISIBLE_DEVICES=0 python -m paddle.distributed.launch --log_level 10 edl_demo.py",
        "0",
        "the level was a number in 1.x",
    ),
    other(
        "python -m paddle.distributed.launch --mlus=\"0,1,2,3\" train.py --config ./configs/transformer.base.yaml --device mlu",
        "0 1 2 3",
        EIGHT,
        "only builds for these devices know the flag",
    ),
    nobody("python -m paddle.distributed.launch --mlus 0,1,2,3,4,5,6,7 train.py --do_eval", EIGHT, VALUE),
    nobody("python -m paddle.distributed.launch --mlus \"3\" run_squad.py --model_type bert", "3", VALUE),
    nobody(
        "python -m paddle.distributed.launch_ps --worker_num 2 --server_num 2 distributed_train.py",
        "2 pserver, 2 trainer",
        "the module is gone",
    ),
    nobody("python -m paddle.distributed.launch_ps distributed_train.py", "2 pserver, 2 trainer", "the module is gone"),
    // Several nodes; `POD_IP` selects this one.
    same(
        "POD_IP=192.168.0.1 python -m paddle.distributed.launch --ips=\"192.168.0.1,192.168.0.2\" train_script",
        "0 1 2 3 4 5 6 7 on 2 nodes",
    ),
    same(
        "POD_IP=192.168.0.16 python -m paddle.distributed.launch --gpus=0,1,2,3 --ips=192.168.0.16,192.168.0.17 train.py --lr=0.01",
        "0 1 2 3 on 2 nodes",
    ),
    same(
        "POD_IP=192.168.3.18 python -u -m paddle.distributed.launch --ips=\"192.168.3.18\" --gpus \"0,1,2,3\" PaddleOCR/tools/train.py -o Global.checkpoints=latest",
        "0 1 2 3",
    ),
    same("python -m paddle.distributed.launch --nnodes=2 demo.py", "0 1 2 3 4 5 6 7 on 2 nodes"),
    same(
        "CUDA_VISIBLE_DEVICES=0,1 python -m paddle.distributed.launch --devices=0,1 --nnodes 2 train.py",
        "0 1 on 2 nodes",
    ),
    same(
        "python -u -m paddle.distributed.launch --nnode=2 --master=127.0.0.1:34567 --log_dir /tmp/x --devices 0,1 semi_auto.py",
        "0 1 on 2 nodes",
    ),
    same(
        "python -m paddle.distributed.launch --master 10.0.0.1:38714 --nnodes 2 train.py",
        "0 1 2 3 4 5 6 7 on 2 nodes",
    ),
    same("python -m paddle.distributed.launch --devices=0,1,2,3 --master=192.168.0.16:8090 train.py", "0 1 2 3"),
    same(
        "python -m paddle.distributed.launch --master 127.0.0.1:8080 --nnodes 1 --nproc_per_node 8 paddlemix/examples/qwen_vl/finetune.py --dtype bfloat16",
        EIGHT,
    ),
    same(
        "CUDA_VISIBLE_DEVICES=2,3,4,5 python -m paddle.distributed.launch --master 127.0.0.1:8080 --nnodes 1 --nproc_per_node 4 examples/qwen_vl/finetune.py",
        "2 3 4 5",
    ),
    same(
        "python -m paddle.distributed.launch --log_dir paddleformers_dist_log --gpus 0,1 --master 127.0.0.1:8080 --nnodes 1 --rank 0 --run_mode=collective launcher.py",
        "0 1",
    ),
    same(
        "PADDLE_NNODES=1 PADDLE_MASTER=127.0.0.1:12538 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 python -m paddle.distributed.launch --nnodes=1 --master=127.0.0.1:12538 --devices=0,1,2,3,4,5,6,7 tools/train.py -c x.yaml",
        EIGHT,
    ),
    same(
        "python -m paddle.distributed.launch --master 127.0.0.1:9000 --nnodes 2 --nproc_per_node 8 --ips 10.0.0.1,10.0.0.2 train_image_generation_trainer.py --do_train",
        "0 1 2 3 4 5 6 7 on 2 nodes",
    ),
    same("python -m paddle.distributed.launch --nnodes=1 --rank 0 test_intranode.py", EIGHT),
    other(
        "python -m paddle.distributed.launch --cluster_node_ips=\"192.168.0.16,192.168.0.17\" --node_ip=192.168.0.16 train.py",
        "0 1 2 3 4 5 6 7 on 2 nodes",
        EIGHT,
        "the flags of 1.x are ignored, and a job of two nodes runs on each alone",
    ),
    other(
        "fleetrun --gpus 0,1,2,3,4,5,6,7 --endpoints=\"192.168.0.1:8585,192.168.0.2:9696\" resnet50_app.py",
        "refused L0004",
        EIGHT,
        "the flag is ignored, and a job of two nodes runs on each alone",
    ),
    nobody(
        "python -u -m paddle.distributed.launch --ips=10.31.10.12,10.31.10.104,10.31.10.115,10.31.10.143 --hosts=10.31.10.12 --gpus \"0,1,2,3,4,5,6,7\" run_pretrain.py pretrain.json",
        "0 1 2 3 4 5 6 7 on 4 nodes",
        "the legacy launcher does not know which node this is",
    ),
    // Parameter servers.
    same(
        "python -m paddle.distributed.launch --server_num=2 --worker_num=4 train.py --lr=0.01",
        "2 pserver, 4 trainer",
    ),
    same(
        "python -m paddle.distributed.launch --server_num 2 --trainer_num 1 --job_id utilbase_all_reduce dist_fleet_utilbase_all_reduce.py",
        "2 pserver, 1 trainer",
    ),
    same(
        "python -m paddle.distributed.launch --server_num=1 --log_dir=pserver_log --worker_num=2 ps_static_cpu.py",
        "1 pserver, 2 trainer",
    ),
    same(
        "python -m paddle.distributed.fleet.launch --server_num=2 --worker_num=2 fleet_ps_training.py",
        "2 pserver, 2 trainer",
    ),
    same(
        "CPU_NUM=12 fleetrun --log_dir ../../fleet_logs --worker_num 4 --server_num 4 dist_cpu_train.py --config metapath2vec.yaml",
        "4 pserver, 4 trainer",
    ),
    same("fleetrun --worker_num=1 --server_num=1 tools/static_fl_trainer.py -m config_fl.yaml", "1 pserver, 1 trainer"),
    nobody(
        "python -m paddle.distributed.launch --server_num=2 --worker_num=2 --heter_worker_num=2 train.py --lr=0.01",
        "2 heter_trainer, 2 pserver, 2 trainer",
        "it asks for `--heter_devices`",
    ),
    // Over etcd.
    nobody(
        "python -m paddle.distributed.launch --elastic_server=127.0.0.1:2379 --np=2 --job_id=job1 --gpus=0,1,2,3 train.py",
        "0 1 2 3 on 2 nodes",
        "`--np` is ambiguous",
    ),
    // Refused.
    other(
        "python -m paddle.distributed.launch --ips=\"xx.xx.xx.xx,xx.xx.xx.xx\" --gpus '0,1,2,3' tools/train.py -c x.yml",
        "refused L0001",
        "0 1 2 3 on 2 nodes",
        "addresses are not checked, and ranks wait for each other forever",
    ),
    nobody("python -m paddle.distributed.launch --gpus 0,9 train.py", "refused L0005", "no such device"),
    nobody("python -m paddle.distributed.launch --gpsu 0,1 train.py", "refused L0011", VALUE),
];
