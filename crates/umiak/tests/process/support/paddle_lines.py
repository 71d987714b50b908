"""Shows what Paddle's own launcher would run, on a host that seems to have eight GPUs.

Reads command lines from stdin as typed, variables first. Prints one JSON object for each: the script and what would
run, or the error.
"""

import contextlib
import io
import json
import os
import shlex
import sys

from paddle.base import core

core.is_compiled_with_cuda = lambda: True
core.get_cuda_device_count = lambda: 8

from paddle.distributed.fleet import launch as legacy
from paddle.distributed.launch import controllers
from paddle.distributed.launch.context import Context
from paddle.distributed.launch.controllers.master import HTTPMaster

# There is only this node: the others are taken to be like it.
HTTPMaster.sync_peers = lambda self, prefix, key, value, size, rank=-1: ([value] * size, max(rank, 0))


def labels(positions):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = visible.split(",") if visible else [str(number) for number in range(8)]
    return "+".join(known[int(position)] for position in positions) or "-"


def on_nodes(nodes):
    return f" on {nodes} nodes" if nodes > 1 else ""


def by_current(context):
    controller = controllers.init(context)
    controller.build_pod()
    roles, devices = {}, []
    for container in controller.pod.containers:
        env = container.env
        role = {"PSERVER": "pserver"}.get(env.get("TRAINING_ROLE"), "trainer")
        roles[role] = roles.get(role, 0) + 1
        selected = env.get("FLAGS_selected_gpus", "")
        devices.append(labels(selected.split(",") if selected else []))
    if "pserver" in roles:
        return ", ".join(f"{count} {role}" for role, count in sorted(roles.items()))
    replicas = len(controller.pod.containers)
    world = int(controller.pod.containers[0].env["PADDLE_TRAINERS_NUM"])
    return " ".join(devices) + on_nodes(world // replicas)


def by_legacy():
    seen = []

    def collective(args):
        cluster, pod = legacy.get_cluster_info(args)
        devices = " ".join(labels(trainer.accelerators) for trainer in pod.trainers)
        seen.append((args.training_script, devices + on_nodes(len(cluster.pods))))

    def servers(args, mode):
        job = legacy.ParameterServerLauncher(args, mode)
        counts = {"heter_trainer": job.heter_worker_num, "pserver": job.server_num, "trainer": job.worker_num}
        text = ", ".join(f"{count} {role}" for role, count in sorted(counts.items()) if count)
        seen.append((args.training_script, text))

    legacy.launch_collective, legacy.launch_ps = collective, servers
    legacy.launch()
    return seen[0]


def answer(line):
    words = shlex.split(line)
    while "=" in words[0]:
        name, value = words.pop(0).split("=", 1)
        os.environ[name] = value
    launcher = next(word for word in words if word == "fleetrun" or word.startswith("paddle."))
    sys.argv = ["launch", *words[words.index(launcher) + 1 :]]
    if launcher == "paddle.distributed.fleet.launch":
        return by_legacy()
    if launcher not in ("fleetrun", "paddle.distributed.launch"):
        raise ModuleNotFoundError(launcher)
    context = Context()
    if context.is_legacy_mode():
        return by_legacy()
    return context.args.training_script, by_current(context)


def main():
    for text in sys.stdin:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    script, runs = answer(text)
                result = {"script": script, "runs": runs}
            except BaseException as error:  # SystemExit too: argparse raises it
                result = {"error": f"{type(error).__name__}: {error}"}
            os.write(writer, json.dumps(result).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            print(pipe.read(), flush=True)
        os.waitpid(child, 0)


main()
