//! The table itself, in the order of codes; a line is matched in that order too. Broad patterns are
//! marked general, so that they give way to the others.

use super::Kind::{Cause, Consequence, Victim, Waiting};
use super::Signature;

/// Every signature, in the order of codes.
#[rustfmt::skip] // One row, one block: a row is read as a whole.
pub static SIGNATURES: &[Signature] = &[
    Signature::new("U1101", Cause, "a Python module is missing or cannot be imported",
        r"^(ModuleNotFoundError|ImportError)\b|: No module named |cannot import name ",
        "install the module into the interpreter that runs the ranks",
        "Python could not import something. Check that the ranks run the interpreter you think they do (a virtual \
         environment that is active on one machine only is the usual reason), that the versions fit, and that no \
         file of yours has the name of the module.").general(),
    Signature::new("U1102", Cause, "a shared library is missing or does not fit",
        r"cannot open shared object file|undefined symbol:|error while loading shared libraries",
        "install the library, or set `LD_LIBRARY_PATH` so that the ranks find the right one",
        "The dynamic loader could not find a library, or found one of another version. `ldd` on the file named in \
         the message shows what is missing. A framework built for one CUDA or compiler version next to libraries of \
         another gives `undefined symbol`."),
    Signature::new("U1103", Cause, "the C or C++ runtime of this host is too old",
        r"version `?'?(GLIBC|GLIBCXX|CXXABI)_[0-9.]+'? (\(.*\) )?not found",
        "run in the image the program was built for, or install a build for this system",
        "The program was built against a newer glibc or libstdc++ than this host has. It has to be built here, or \
         run in a container with the newer system."),
    Signature::new("U1104", Cause, "a command was not found",
        r"(command not found|^(ba|da|z|)sh: (line )?[0-9]+: .*: not found)$",
        "check the spelling and the `PATH` the ranks start with",
        "A shell script called a program that is not on the rank's `PATH`. Ranks get the environment of the \
         launcher, not that of a login shell."),
    Signature::new("U1105", Cause, "a program of another architecture",
        r"Exec format error|\[Errno 8\]",
        "check the file's architecture and its first line (`#!…`)",
        "The kernel cannot execute the file: it was built for another processor, or it is a script without a `#!` \
         line."),
    Signature::new("U1201", Cause, "a file or directory does not exist",
        r"^FileNotFoundError\b|No such file or directory|\[Errno 2\]",
        "check the path on the host where the rank ran; relative paths start at the launch directory",
        "The rank opened a path that is not there. On several hosts the usual reason is data or a checkpoint that \
         was placed on one of them only.").general(),
    Signature::new("U1202", Cause, "permission denied",
        r"^PermissionError\b|Permission denied|\[Errno 13\]|Operation not permitted",
        "check the owner and mode of the path, and the user the ranks run as",
        "The kernel refused access. Look at the file named in the message, at every directory above it, and at who \
         the ranks run as on that host."),
    Signature::new("U1203", Cause, "no space left on the device",
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]",
        "free space or quota on the file system of the path; `df -h` and `df -i` show which one is full",
        "A write failed because the file system, its inodes or the user's quota are used up. `/tmp` and `/dev/shm` \
         count too. A checkpoint that was being written is probably incomplete.").grave(),
    Signature::new("U1204", Cause, "the storage failed to read or write",
        r"Input/output error|\[Errno 5\]",
        "check the disk or the network file system under the path; `dmesg` on that host says more",
        "The kernel could not read or write a block: a failing disk, a network file system that lost its server, or \
         a mount that went away. It is not an error of the program. Try to read the same file by hand on the same \
         host.").grave(),
    Signature::new("U1205", Cause, "too many open files",
        r"Too many open files|\[Errno 24\]|received 0 items of ancdata",
        "raise the limit (`ulimit -n`) or use fewer loader workers",
        "The process reached its limit of open files. Data loaders that pass tensors as file descriptors use one \
         for each tensor: raise the limit, or choose the `file_system` sharing strategy."),
    Signature::new("U1206", Cause, "a stale file handle on a network file system",
        r"Stale file handle|\[Errno 116\]",
        "mount the file system again on that host",
        "The file was replaced or its server restarted while this host still held it. Data that is rewritten in \
         place while jobs read it gives the same error.").grave(),
    Signature::new("U1207", Cause, "a read-only file system",
        r"Read-only file system|\[Errno 30\]",
        "write somewhere else, or find out why the mount became read-only",
        "The path lies on a mount that does not take writes. A disk that was writable before and is not now has \
         usually failed: see `dmesg`."),
    Signature::new("U1301", Cause, "the address is already in use",
        r"Address already in use|EADDRINUSE|\[Errno 98\]",
        "another process holds the port: choose another one, or look for a job that was left running",
        "The rank wanted to listen on a port that somebody else has. `ss -ltnp` shows who. A port written into the \
         script collides as soon as two jobs share a host."),
    Signature::new("U1302", Cause, "a host name cannot be resolved",
        r"Name or service not known|Temporary failure in name resolution|nodename nor servname|gaierror",
        "use an address, or make the name known on every host",
        "The resolver does not know a host name. The name of another node is often known on that node only; `getent \
         hosts NAME` shows what this host knows."),
    Signature::new("U1303", Cause, "the limit of processes or threads is reached",
        r"can't start new thread|Resource temporarily unavailable|fork: retry",
        "raise `ulimit -u` or the container's limit of processes, or use fewer threads and workers",
        "The kernel refused a new thread or process. Each rank starts loader workers and compute threads; with many \
         ranks on a host the sum reaches the limit of the user or of the container. `OMP_NUM_THREADS=1` is a quick \
         test."),
    Signature::new("U1304", Cause, "a download failed",
        r"Max retries exceeded with url|HTTPError: [45][0-9][0-9]|CERTIFICATE_VERIFY_FAILED|couldn't connect to 'https?:",
        "download the data before the job and point the script at the copy",
        "The rank tried to fetch something from the network and could not. Compute nodes often have no way out. \
         Fetch models and data sets beforehand, and use the library's offline mode."),
    Signature::new("U1401", Cause, "the CUDA driver is too old",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old|forward compatibility was attempted",
        "update the driver of the host, or install a framework built for its CUDA version",
        "The framework needs a newer driver than the host has. `nvidia-smi` shows the highest CUDA version the \
         driver supports. The driver belongs to the host, a container cannot bring a newer one."),
    Signature::new("U1402", Cause, "no GPU is visible",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected",
        "check `nvidia-smi` on that host and `CUDA_VISIBLE_DEVICES` of the rank",
        "The framework found no device. Either the host has none, the driver is not loaded, the container was \
         started without devices, or `CUDA_VISIBLE_DEVICES` hides them."),
    Signature::new("U1403", Cause, "the framework has no code for this GPU",
        r"no kernel image is available for execution|is not compatible with the current PyTorch installation|PTX was compiled with an unsupported toolchain",
        "install a build of the framework for this GPU's compute capability",
        "The GPU is older or newer than the ones the framework was built for."),
    Signature::new("U2101", Cause, "a syntax error",
        r"^(SyntaxError|IndentationError|TabError): ",
        "the message names the line; check the Python version too",
        "Python could not parse a file. If the line looks right, the interpreter is probably older than the syntax."),
    Signature::new("U2102", Cause, "the script refused its arguments",
        r": error: (unrecognized arguments|the following arguments are required|argument .*: (invalid|expected))",
        "compare the arguments after the script's name with what it accepts",
        "The script's own argument parser rejected the command line. `--local-rank` or `--local_rank` in the \
         message means that another launcher passed an argument this script does not declare: read `LOCAL_RANK` \
         from the environment instead."),
    Signature::new("U2103", Cause, "rank or world size is missing or wrong",
        r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected|[Ii]nvalid (rank|world.?size)|rank .* (must be|should be) less than|KeyError: '(RANK|WORLD_SIZE|LOCAL_RANK|PADDLE_TRAINER_ID|PADDLE_TRAINERS_NUM)'",
        "take rank and world size from the environment, not from fixed numbers or old flags",
        "The program and the launcher disagree about who takes part. Usually a rank or size is fixed in the script, \
         a variable was overwritten, or the script was started without a launcher."),
    Signature::new("U2104", Cause, "the process group was used before it was made",
        r"[Dd]efault process group has not been initialized|parallel environment (is|has) not (been )?initialized|call init_parallel_env",
        "call `init_process_group` (torch) or `init_parallel_env` (Paddle) first, in every rank",
        "A collective call came before the group was initialised, or after it was destroyed."),
    Signature::new("U2201", Cause, "tensor shapes do not fit",
        r"shapes cannot be multiplied|size mismatch for |must match the size of tensor|Sizes of tensors must match|shape '\[.*\]' is invalid for input|InvalidArgument\) .*[Ss]hape",
        "print the shapes just before the place named above",
        "An operation got tensors whose sizes do not go together, or a checkpoint belongs to another model. If one \
         rank only fails, look at its last, smaller batch."),
    Signature::new("U2202", Cause, "the loss is not a number",
        r"(?i)\bloss( value)?( is|=|:| became| was)? ?(nan|inf\b|not finite|non-finite)|FloatingPointError|contains NaN|(?i:found nan|nan or inf)",
        "lower the learning rate, check the inputs of that step, look at mixed-precision scaling",
        "Training diverged, or an input holds values that are no numbers. Repeat the step with the framework's \
         anomaly check to find the first operation that yields NaN."),
    Signature::new("U2203", Cause, "tensors on different devices",
        r"Expected all tensors to be on the same device|Input type .* and weight type .* should be the same",
        "move model and inputs to the rank's own device",
        "An operation mixes tensors of two devices, or of host and device. In distributed scripts the reason is \
         often a fixed `cuda:0` where the local rank's device was meant."),
    Signature::new("U2204", Cause, "a checkpoint or data file is damaged",
        r"PytorchStreamReader failed|[Ii]nvalid magic number|Ran out of input|UnpicklingError|invalid load key|truncated file|Invalid header or archive is corrupted",
        "check the size of the file; a run that was stopped while saving leaves a part of one",
        "A file ends early or is not what its reader expects. Common reasons: the save was interrupted, several \
         ranks wrote the same path, or a Git LFS pointer was downloaded instead of the data."),
    Signature::new("U2205", Cause, "parameters that took no part in the loss",
        r"Expected to have finished reduction in the prior iteration",
        "set `find_unused_parameters=True`, or make every parameter take part in the loss",
        "Data-parallel training waits for the gradient of every parameter. Some parameters got none in this step, \
         for example because a branch of the model was skipped."),
    Signature::new("U2206", Cause, "endless recursion",
        r"^RecursionError\b|maximum recursion depth exceeded|[Ss]tack overflow",
        "the traceback shows which functions call each other",
        "Functions call each other without an end, or a structure is nested deeper than Python allows."),
    Signature::new("U2301", Cause, "the program crashed in native code",
        r"Segmentation fault|SIGSEGV",
        "run the rank with `PYTHONFAULTHANDLER=1` to see the Python line, or under a debugger",
        "A memory access in native code failed. Extensions built for another version of the framework or of Python \
         are the usual reason; a core dump and `gdb` show the function."),
    Signature::new("U2302", Cause, "the processor does not know an instruction",
        r"(?i)illegal instruction|SIGILL",
        "install a build for this processor (often: one without AVX)",
        "The program was built for a newer processor than this host has. Clusters of mixed generations fail on \
         their oldest hosts only."),
    Signature::new("U2303", Cause, "memory of the process was corrupted",
        r"double free or corruption|free\(\): invalid|malloc\(\): |corrupted (size|double-linked)|stack smashing detected|AddressSanitizer",
        "an extension in native code writes where it must not; AddressSanitizer finds the place",
        "The C library noticed that its own records were overwritten and stopped the process. The line that is \
         named is where it was noticed, not where it was done."),
    Signature::new("U2401", Consequence, "the data reader failed",
        r"Blocking queue is killed because the data reader raises an exception",
        "the reader's own error stands further up in the same log",
        "The training loop asked for the next batch, but the thread or process that reads data had already failed. \
         This message is the echo: the error that matters was printed before it."),
    Signature::new("U2402", Consequence, "a data loader worker ended unexpectedly",
        r"DataLoader worker \(pid\(?s?\)? [0-9, ]+\) exited unexpectedly|DataLoader [0-9]+ workers? exit unexpectedly",
        "run with no loader workers to see the worker's own error",
        "A process that reads data ended without a message to the training loop. Its own output may stand further \
         up; memory is a common reason."),
    Signature::new("U3101", Cause, "the host has no memory left",
        r"^(numpy\S*\.)?(_Array)?MemoryError\b|Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: |\[Errno 12\]",
        "use fewer or smaller batches and loader workers, or ask for more memory",
        "An allocation of main memory was refused. Each rank and each loader worker holds its own copy of what it \
         reads: multiply before comparing with the host's memory or the container's limit.").grave(),
    Signature::new("U3102", Cause, "the GPU has no memory left",
        r"CUDA out of memory|OutOfMemoryError|Out of memory error on GPU|cudaErrorMemoryAllocation|CUDA error\(2\)|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "use a smaller batch, accumulate gradients, or check who else uses that GPU (`nvidia-smi`)",
        "An allocation on the device failed. If the numbers in the message do not explain it, another process holds \
         memory of the same GPU: a job that was left running, or two ranks on one device. Memory that is reserved \
         but not used points to fragmentation.").grave(),
    Signature::new("U3103", Cause, "the kernel killed a process for memory",
        r"killed by signal: Killed|(?i:oom-kill|out of memory: killed process)|^(.*: line [0-9]+: +[0-9]+ )?Killed\b|detected [0-9]+ oom[-_]kill",
        "use fewer loader workers or smaller batches, or raise the memory limit",
        "A process was ended with SIGKILL, which is how the kernel frees memory when the host or the container's \
         limit is exhausted. The kernel's log on that host names the process and its size.").grave(),
    Signature::new("U3104", Cause, "shared memory is full",
        r"killed by signal: Bus error|Fatal Python error: Bus error|Bus error +\(core dumped\)|out of shared memory|insufficient shared memory|unable to (open|allocate|write).* shared memory|`Access to an undefined portion of a memory object` is detected",
        "enlarge `/dev/shm` (containers: `--shm-size=8g` or `--ipc=host`), or use fewer loader workers",
        "Loader workers hand batches over in `/dev/shm`, and containers give it 64 MiB unless told otherwise. \
         Writing beyond its end is a bus error.").grave(),
    Signature::new("U3201", Cause, "an assertion failed on the GPU",
        r"device-side assert triggered|CUDA error\(710\)",
        "look for an index out of range, such as a label that is not below the number of classes",
        "A kernel checked its input and stopped. It is reported late, so the traceback points somewhere after the \
         real place: run with `CUDA_LAUNCH_BLOCKING=1`, or the same step on CPU. Lines with `Assertion … failed` \
         above say which check it was.").grave(),
    Signature::new("U3202", Cause, "illegal memory access on the GPU",
        r"illegal memory access|CUDA error\(700\)|unspecified launch failure|CUDA error\(719\)|misaligned address",
        "run with `CUDA_LAUNCH_BLOCKING=1` to find the operation; suspect custom kernels first",
        "A kernel read or wrote outside its memory. The error appears at a later call. If it moves about between \
         runs and hosts the program is at fault; if it stays with one GPU, suspect the device.").grave(),
    Signature::new("U3203", Cause, "a GPU number that does not exist",
        r"invalid device ordinal|CUDA error\(101\)|Invalid device id|(?i:invalid CUDAPlace|device id must be)",
        "use the local rank, not the global one, to choose the device",
        "The rank asked for a device that is not among the visible ones. Numbers count within \
         `CUDA_VISIBLE_DEVICES`: with one visible device its number is 0."),
    Signature::new("U3204", Cause, "the GPU failed",
        r"uncorrectable ECC error|CUDA error\(214\)|(?i:fallen off the bus)|NVRM: Xid|hardware stack error|Unable to determine the device handle|GPU is lost",
        "take the host out of use and have the device checked; `nvidia-smi -q` and `dmesg` say more",
        "The device or its connection broke. The program is not at fault; the job will run elsewhere.").grave(),
    Signature::new("U3205", Cause, "a CUDA call failed",
        r"CUDA error|CUDA runtime error|\(External\)\s+(CUDA|CUDNN|CUBLAS|NCCL) error|cudaError[A-Z]",
        "run with `CUDA_LAUNCH_BLOCKING=1` so that the traceback points to the failing call",
        "The CUDA runtime reported an error that umiak has no separate entry for. Errors of kernels are reported \
         late: the traceback may point past the real place.").general(),
    Signature::new("U3206", Cause, "a CUDA library call failed",
        r"CUBLAS_STATUS_[A-Z_]+|CUDNN_STATUS_[A-Z_]+|CUSOLVER_STATUS_[A-Z_]+|CUFFT_[A-Z_]+",
        "check that the library versions fit; `NOT_INITIALIZED` is often a full GPU or a bad index",
        "cuBLAS, cuDNN or another library of CUDA refused a call. After an earlier device error every call fails, \
         so look for the first one. Otherwise compare library versions, and free memory on the device."),
    Signature::new("U3207", Cause, "all GPUs are busy",
        r"CUDA-capable device\(s\) is/are busy|devices are busy or unavailable|CUDA error\(46\)",
        "another process has the GPU for itself: `nvidia-smi` shows the compute mode and who it is",
        "The device is in exclusive mode and taken, or in a state in which it accepts nobody."),
    Signature::new("U4101", Cause, "NCCL could not use the network or the system",
        r"ncclSystemError|NCCL error.*unhandled system error|(?i:nccl.*unhandled system error)",
        "run with `NCCL_DEBUG=WARN`; name the interface with `NCCL_SOCKET_IFNAME`",
        "A system call inside NCCL failed, most often a connection over the wrong network interface, a firewall, or \
         shared memory that is too small. NCCL's warnings name the call.").general(),
    Signature::new("U4102", Cause, "NCCL failed",
        r"ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage|ncclInvalidArgument|NCCL error|NCCL WARN .*[Ee]rror",
        "run with `NCCL_DEBUG=WARN` and compare NCCL, driver and CUDA versions on all hosts",
        "A call of NCCL failed. `invalid usage` means that the ranks called different operations or share a device; \
         an unhandled CUDA error usually has its own reason further up.").general(),
    Signature::new("U4103", Cause, "two ranks on one GPU",
        r"Duplicate GPU detected",
        "give each rank a device of its own, or use the gloo backend",
        "NCCL takes one rank for each device. The ranks chose the same one: a fixed device number in the script, or \
         more processes than devices."),
    Signature::new("U4201", Waiting, "a collective operation timed out",
        r"Watchdog caught collective operation timeout|collective operation timeout: |[Tt]imed out waiting for .*(collective|NCCL)|NCCL.*\btimed out\b",
        "a rank did not take part: look at the ranks that did not time out, and at what they did last",
        "This rank waited for an operation in which every rank has to take part, and at least one did not come: it \
         hangs, it is slow, it ended, or it calls another operation. The rank that reports the time-out is rarely \
         the one at fault."),
    Signature::new("U4202", Waiting, "waited in vain for the store",
        r"Socket Timeout|wait timeout after [0-9]+ ?ms|[Tt]imed out after [0-9]+ seconds waiting for clients|client socket has timed out|connect\(\) timed out|DistStoreError",
        "check that every rank started and that the master's address and port can be reached from here",
        "The ranks meet in a store that one of them serves. Not all came in time: one did not start, is still \
         loading, or cannot reach the address. From this host, try to connect to it by hand."),
    Signature::new("U4203", Waiting, "gloo waited in vain for a peer",
        r"gloo.*[Tt]imed out (waiting|after)|[Cc]onnect timeout \[",
        "look at the peer: it hangs, is slow, or cannot be reached over the chosen interface",
        "A gloo operation got no answer in time. If it happens at the start, name the interface with \
         `GLOO_SOCKET_IFNAME`; later, look at what the other ranks did last."),
    Signature::new("U4204", Waiting, "ranks did not reach the barrier",
        r"failed to pass monitoredBarrier",
        "look at the ranks that the message names",
        "The barrier knows who is missing: the ranks in the message hang before it, or are gone."),
    Signature::new("U9101", Victim, "stopped by SIGTERM",
        r"\*\*\* SIGTERM \(@|`Termination signal` is detected|SignalException: Process [0-9]+ got signal: (15|SIGTERM)|[Rr]eceived (signal )?(15|SIGTERM)\b",
        "somebody else ended this rank: look at the other ranks, then at the scheduler's limits",
        "The rank received a request to end. The launcher sends one to all ranks as soon as one fails, so the \
         reason is in another rank's log. If no rank failed before, a scheduler or a person sent it."),
    Signature::new("U9102", Victim, "interrupted from the keyboard",
        r"^KeyboardInterrupt\b|[Rr]eceived (signal )?(2|SIGINT)\b|got signal: (2|SIGINT)\b",
        "somebody pressed Ctrl-C or sent SIGINT",
        "The rank was interrupted. That is no error of its own."),
    Signature::new("U9103", Victim, "a data loader worker was told to end",
        r"killed by signal: (Terminated|Hangup|Interrupt)",
        "look at who failed first: workers end with their job",
        "A process that reads data received a signal to end, as all processes of a job do when it is stopped."),
    Signature::new("U9201", Victim, "the peer closed the connection",
        r"Connection closed by peer|[Rr]emote (host|end) closed (the )?connection|Socket closed$|^ConnectionError\b",
        "the peer ended first: look at its log",
        "The process at the other end closed its side in the middle of an operation, which it does when it ends. \
         This rank failed because of it."),
    Signature::new("U9202", Victim, "the connection was reset by the peer",
        r"[Cc]onnection reset by peer|^ConnectionResetError\b|\[Errno 104\]|ECONNRESET",
        "the peer ended first: look at its log",
        "The process at the other end is gone, and the kernel there answered in its place. This rank failed because \
         of it."),
    Signature::new("U9203", Victim, "the connection was refused",
        r"[Cc]onnection refused|^ConnectionRefusedError\b|\[Errno 111\]|ECONNREFUSED",
        "nobody listens there: the peer ended, or never came so far; look at its log",
        "The address was reached, but no process listens on the port. The peer ended or has not started; if every \
         log is silent about that, the address or port is wrong."),
    Signature::new("U9204", Victim, "a broken pipe or connection",
        r"[Bb]roken pipe|^BrokenPipeError\b|\[Errno 32\]|EPIPE\b",
        "the process that should have read this ended first",
        "The rank wrote to a connection or pipe whose other end is closed: a store whose server ended, a peer, or a \
         process the output was piped into."),
    Signature::new("U9205", Victim, "NCCL lost a peer",
        r"ncclRemoteError|remote process (has )?exited|remote process exiting prematurely|[Cc]onnection closed by remote peer",
        "the peer ended first: look at its log",
        "NCCL noticed that the process at the other end is gone. This rank failed because of it."),
    Signature::new("U9206", Victim, "the store is gone",
        r"failed to recv, got 0 bytes|Did the remote server shutdown or crash|Connection was likely closed|DistNetworkError|TCPStore.*([Cc]onnection|recvValue|sendBytes) (was )?(closed|failed)",
        "the rank that serves the store (rank 0 as a rule) ended first: look at its log",
        "The rank talked to the store that all ranks share, and its server did not answer any more. It ends with \
         the rank that holds it."),
    Signature::new("U9207", Victim, "the communicator was aborted",
        r"NCCL communicator was aborted|communicator .* (was )?aborted|process group .* has been aborted",
        "another rank or thread gave up first: look for an error before this one",
        "The group's connections were torn down while this rank still used them, because an earlier error was \
         noticed elsewhere."),
];
