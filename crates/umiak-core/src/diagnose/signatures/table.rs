//! The table itself. Rows are in the order of codes, and a line is matched in that order. Broad patterns are
//! marked general and have the lowest priority; patterns of a special case of another row are marked exact and
//! have the highest.

use super::Kind::{Cause, Consequence, Victim, Waiting};
use super::Signature;

/// Every signature, in the order of codes.
#[rustfmt::skip] // One row, one block: a row is read as a whole.
pub static SIGNATURES: &[Signature] = &[
    Signature::new("U1101", Cause, "a Python module is missing or cannot be imported",
        r"^(ModuleNotFoundError|ImportError)\b|: No module named |cannot import name ",
        "install the module into the interpreter that runs the ranks",
        "Python could not import something. Check that the ranks run the interpreter you expect (a virtual \
         environment that is active on one machine only is the usual reason), that the versions match, and that none \
         of your files has the name of the module.").general(),
    Signature::new("U1102", Cause, "a shared library is missing or incompatible",
        r"cannot open shared object file|undefined symbol:|error while loading shared libraries",
        "install the library, or set `LD_LIBRARY_PATH` so that the ranks find the right one",
        "The dynamic loader could not find a library, or found one of another version. `ldd` on the file named in \
         the message shows what is missing. A framework built for one CUDA or compiler version next to libraries of \
         another causes `undefined symbol`."),
    Signature::new("U1103", Cause, "the C or C++ runtime of this host is too old",
        r"version `?'?(GLIBC|GLIBCXX|CXXABI)_[0-9.]+'? (\(.*\) )?not found",
        "run in the image the program was built for, or install a build for this system",
        "The program was built against a newer glibc or libstdc++ than this host has. Build it here, or run it \
         in a container with the newer system."),
    Signature::new("U1104", Cause, "a command was not found",
        r"(command not found|^((\S*/)?(a|ba|da|k|z|)sh|[^ :]+: (line )?[0-9]+): [^ :]+: not found)$",
        "check the spelling and the `PATH` the ranks start with",
        "A shell script called a program that is not on the rank's `PATH`. Ranks get the environment of the \
         launcher, not that of a login shell."),
    Signature::new("U1105", Cause, "program built for another architecture",
        r"Exec format error|\[Errno 8\]",
        "check the file's architecture and its first line (`#!…`)",
        "The kernel cannot execute the file: it was built for another processor, or it is a script without a `#!` \
         line."),
    Signature::new("U1106", Cause, "module built for another NumPy version",
        r"numpy\.\w+ size changed, may indicate binary incompatibility|compiled using NumPy 1\.x cannot be run in|module compiled against A[PB]I version|numpy\.core\.multiarray failed to import",
        "install compatible builds, often `numpy<2`, or rebuild the module against the installed NumPy",
        "A compiled module was built for a NumPy with another binary interface. The traceback names the module. Pin \
         NumPy to the version the module was built for, or install a newer build of the module. Installing another \
         package with `pip` often changes one of the two.").exact(),
    Signature::new("U1107", Cause, "generated protobuf code is incompatible with the library",
        r"Descriptors cannot (not )?be created directly|cannot import name '(builder|runtime_version)' from 'google\.protobuf|protobuf\.runtime_version\.VersionError|Couldn't build proto file into descriptor pool",
        "install `protobuf<=3.20.3` or newer builds of the packages; `PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python` is a temporary workaround",
        "A package contains code that an older protobuf compiler generated, and the installed protobuf refuses it. \
         Either downgrade protobuf to a version that the package supports, or update the package. The pure Python \
         implementation accepts both but is slow.").exact(),
    Signature::new("U1108", Cause, "file from another Python version",
        r"unsupported pickle protocol|bad magic number in '|requires a different Python|Python version mismatch",
        "use the same Python version on every host, for writing and for reading",
        "Pickles and compiled modules can be read only by certain versions of Python. A checkpoint written by a newer \
         Python, or an environment that is shared by hosts with different versions, causes this error."),
    Signature::new("U1109", Cause, "text encoding error",
        r"^Unicode(De|En)codeError\b|unsupported locale setting|codec can't (de|en)code ",
        "open text files with `encoding=\"utf-8\"`, and start with `PYTHONUTF8=1` or `LC_ALL=C.UTF-8`",
        "Python found bytes or characters that the encoding cannot represent. Without a locale, as in many \
         containers and batch systems, the encoding is ASCII. If only one file is affected, it is damaged or \
         not text."),
    Signature::new("U1110", Cause, "an extension could not be built",
        r"Error building extension '|Failed to find C compiler|Ninja is required to load C\+\+ extensions|(CUDA|ROCM)_HOME environment variable is not set|detected CUDA version .* mismatches the version that was used to compile",
        "install a compiler, ninja and a CUDA toolkit of the framework's version, or build the extension beforehand",
        "The program compiles code when it starts, and a tool or library it needs is missing or has the wrong version. \
         Building once before the job, and shipping the result, also keeps ranks from building the same files at the \
         same time.").exact(),
    Signature::new("U1201", Cause, "a file or directory does not exist",
        r"^FileNotFoundError\b|No such file or directory|\[Errno 2\]",
        "check the path on the host where the rank ran; relative paths start at the launch directory",
        "The rank opened a path that does not exist. On several hosts the usual reason is data or a checkpoint that \
         exists on only one of them.").general(),
    Signature::new("U1202", Cause, "permission denied",
        r"^PermissionError\b|Permission denied|\[Errno 13\]|\[Errno 1\] Operation not permitted",
        "check the owner and mode of the path (a script needs its executable bit: `chmod +x`), and the user the ranks run as",
        "The kernel refused access. Look at the file named in the message, at every directory above it, and at the \
         user the ranks run as on that host."),
    Signature::new("U1203", Cause, "no space left on the device",
        r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]",
        "free space or quota on the file system of the path; `df -h` and `df -i` show which one is full",
        "A write failed because the file system, its inodes or the user's quota are exhausted. `/tmp` and `/dev/shm` \
         count too. A checkpoint that was being written is probably incomplete.").grave(),
    Signature::new("U1204", Cause, "storage read or write error",
        r"Input/output error|\[Errno 5\]",
        "check the disk or the network file system under the path; `dmesg` on that host says more",
        "The kernel could not read or write a block: a failing disk, a network file system that lost its server, or \
         a mount that disappeared. It is not an error of the program. Try to read the same file by hand on the same \
         host.").grave(),
    Signature::new("U1205", Cause, "too many open files",
        r"Too many open files|\[Errno 24\]|received 0 items of ancdata",
        "raise the limit (`ulimit -n`) or use fewer loader workers",
        "The process reached its limit of open files. Data loaders that pass tensors as file descriptors use one \
         for each tensor: raise the limit, or choose the `file_system` sharing strategy."),
    Signature::new("U1206", Cause, "a stale file handle on a network file system",
        r"Stale file handle|\[Errno 116\]",
        "mount the file system again on that host",
        "The file was replaced or its server restarted while this host had it open. Data that is rewritten in \
         place while jobs read it causes the same error.").grave(),
    Signature::new("U1207", Cause, "a read-only file system",
        r"Read-only file system|\[Errno 30\]",
        "write somewhere else, or find out why the mount became read-only",
        "The path is on a read-only mount. A disk that was writable before has usually failed: see `dmesg`."),
    Signature::new("U1208", Cause, "the path exists already",
        r"^FileExistsError\b|\[Errno 17\]",
        "create directories with `exist_ok=True`, or let one rank create them and the others wait",
        "A rank tried to create a path that already exists. When all ranks create the same directory at the start, \
         all but the first fail: let one rank create it, followed by a barrier.").general(),
    Signature::new("U1209", Cause, "a mounted file system is disconnected",
        r"Transport endpoint is not connected: '|Transport endpoint is not connected$|Cannot send after transport endpoint shutdown|\[Errno 108\]|Remote I/O error|\[Errno 121\]",
        "mount it again on that host, and look for the reason in its client's log",
        "The process behind the mount (a FUSE client) has exited, or the server no longer accepts this host. Every \
         access to the path fails until it is mounted again. Clients that the OOM killer ends leave such mounts behind.").grave(),
    Signature::new("U1210", Cause, "a file is locked",
        r"unable to lock file|database is locked|No locks available|\[Errno 37\]|BlockingIOError: .*[Uu]nable to (create|open) file",
        "let one rank write the file; `HDF5_USE_FILE_LOCKING=FALSE` for files that are only read",
        "Another process holds the lock of the file, or its file system does not support locks. Ranks that open the same HDF5 or \
         SQLite file for writing exclude each other; a network file system may refuse locks altogether.").exact(),
    Signature::new("U1301", Cause, "the address is already in use",
        // brpc, in Paddle's parameter servers, names the endpoint only.
        r"Address already in use|EADDRINUSE|\[Errno 98\]|server\.cpp:[0-9]+\] Fail to listen |BrpcPsServer start failed, ip_port=",
        "another process uses the port: choose another port, or look for a job that was left running",
        "The rank tried to listen on a port that another process uses. `ss -ltnp` shows which one. A port that is fixed \
         in the script conflicts as soon as two jobs share a host."),
    Signature::new("U1302", Cause, "a host name cannot be resolved",
        r"Name or service not known|Temporary failure in name resolution|nodename nor servname|gaierror",
        "use an address, or make the name resolvable on every host",
        "A host name has no address here. The name of a node can often be resolved on that node only; `getent hosts \
         NAME` shows how this host resolves it."),
    Signature::new("U1303", Cause, "process or thread limit reached",
        r"can't start new thread|Resource temporarily unavailable|fork: retry|libgomp: Thread creation failed|pthread_create failed",
        "raise `ulimit -u` or the container's limit of processes, or use fewer threads and workers",
        "The kernel refused a new thread or process. Each rank starts loader workers and compute threads; with many \
         ranks on a host the sum reaches the limit of the user or of the container. `OMP_NUM_THREADS=1` is a quick \
         test."),
    Signature::new("U1304", Cause, "a download failed",
        r"Max retries exceeded with url|HTTPError: [45][0-9][0-9]|HTTP Error [45][0-9][0-9]: |couldn't connect to 'https?:|Connection to \S+ timed out\. \(connect timeout=",
        "download the data before the job and point the script at the copy",
        "The rank could not fetch something from the network. Compute nodes often have no internet access. \
         Fetch models and data sets beforehand, and use the library's offline mode."),
    Signature::new("U1305", Cause, "the address does not belong to this host",
        r"Cannot assign requested address|\[Errno 99\]|EADDRNOTAVAIL|[Cc]annot assign requested address",
        "let the rank listen on an address of its own host, or on all of them",
        "The rank tried to listen on an address that no interface of this host has: the address of another node, one \
         that is valid only from outside (a load balancer, a container's host), or one that DHCP has changed. For \
         outgoing connections it means that the local ports are exhausted."),
    Signature::new("U1306", Cause, "the server refused access",
        r"\b40[13] Client Error|HTTP Error 40[13]: |HTTPError: 40[13]\b|GatedRepoError|Cannot access gated repo|Invalid (user|username or) (token|password)|AccessDenied\) when calling",
        "give the ranks a valid token (`HF_TOKEN`, cloud keys) and request access to what they fetch",
        "A model hub or an object store rejected the credentials, or none were sent. Tokens are kept in the home \
         directory or in the environment of the shell where you logged in: check that the ranks see them, on every \
         host, and that they have not expired.").exact(),
    Signature::new("U1307", Cause, "certificate verification failed",
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSL certificate problem|certificate verify failed|x509: certificate",
        "install the organisation's root certificate, name it in `SSL_CERT_FILE` and `REQUESTS_CA_BUNDLE`, and check the clock",
        "The server's certificate is signed by an authority that this host does not trust, has expired, or belongs to \
         another name. Proxies that inspect traffic replace it with their own certificate. Images often lack the \
         package `ca-certificates`.").exact(),
    Signature::new("U1401", Cause, "the CUDA driver is too old",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old|forward compatibility was attempted|CUDA error\(35\)",
        "update the driver of the host, or install a framework built for its CUDA version",
        "The framework needs a newer driver than the host has. `nvidia-smi` shows the highest CUDA version the \
         driver supports. The driver belongs to the host: a container cannot bring a newer one."),
    Signature::new("U1402", Cause, "no GPU is visible",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device is detected|CUDA error\(100\)|CUDA device count is 0",
        "check `nvidia-smi` on that host and `CUDA_VISIBLE_DEVICES` of the rank",
        "The framework found no device. Either the host has none, the driver is not loaded, the container was \
         started without devices, or `CUDA_VISIBLE_DEVICES` hides them."),
    Signature::new("U1403", Cause, "the framework has no code for this GPU",
        r"no kernel image is available for execution|is not compatible with the current PyTorch installation|PTX was compiled with an unsupported toolchain",
        "install a build of the framework for this GPU's compute capability",
        "The GPU is older or newer than the ones the framework was built for."),
    Signature::new("U1404", Cause, "CUDA could not be initialised",
        r"CUDA driver initialization failed|CUDA unknown error - this may be due to|CUDA error: initialization error|CUDA error\(3\)|cudaErrorInitializationError|CUDA_ERROR_NOT_INITIALIZED|Failed to initialize NVML: (Unknown Error|Insufficient Permissions)",
        "run `nvidia-smi` in the same container on that host; load `nvidia-uvm`, or restart the container",
        "The driver is installed but does not work for this process. Usual reasons: the module `nvidia-uvm` is not \
         loaded, a container lost its devices when the host reloaded its units, or an earlier fault left the driver \
         in a bad state."),
    Signature::new("U1405", Cause, "NVSwitch is not ready",
        r"system not yet initialized|CUDA error\(802\)|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY",
        "start the fabric manager on that host (`systemctl status nvidia-fabricmanager`), with the driver's version",
        "GPUs that are connected by NVSwitch need the fabric manager service. It is not running, or its version differs \
         from the driver's, as after an update of one of the two."),
    Signature::new("U1406", Cause, "framework built without the requested device or backend",
        r"not compiled with CUDA|Torch not compiled with CUDA enabled|Distributed package doesn't have (NCCL|MPI|GLOO) built in|is compiled without support for|Operator .*gen_nccl_id.* has not been registered|but your paddle is not compiled with",
        "install the GPU build of the framework, or choose the `gloo` backend",
        "The installed package has no support for the device or the backend. `pip install` without the right index \
         installs the CPU build; a requirement of another package may have replaced the GPU build with it."),
    Signature::new("U1407", Cause, "driver and library versions differ",
        r"Driver/library version mismatch|API mismatch: the (client|NVIDIA kernel module)",
        "reboot the host, or unload and load the driver's kernel modules",
        "The driver's files were updated while its kernel module was in use: the loaded module is still the old one. An \
         automatic update is the usual reason."),
    Signature::new("U1408", Cause, "this Paddle build has no parameter servers",
        r"'paddle\.(base|fluid)\.\w+' has no attribute '(DistFleetWrapper|WorkerInfo)'|cannot import name 'CommContext' from 'paddle\.",
        "install a build that has them: `pip install paddlepaddle==2.6.2 'numpy<2' 'protobuf==4.25.*'` (Python 3.11)",
        "Parameter servers and `paddle.distributed.rpc` are not in every package of Paddle: the CPU packages of version 3 \
         lack them. Version 2.6.2 has them.").exact(),
    Signature::new("U1501", Cause, "not enough slots for all ranks",
        r"not enough slots available in the system|More processors requested than permitted|All nodes which are allocated for this job are already filled",
        "ask the scheduler for as many tasks as there are ranks, or correct the host list",
        "A launcher inside the rank tried to start more processes than the allocation has room for. Compare the \
         number of processes with the slots in the host file and with what the scheduler granted."),
    Signature::new("U2101", Cause, "syntax error",
        r"^(SyntaxError|IndentationError|TabError): ",
        "the message names the line; check the Python version too",
        "Python could not parse a file. If the line looks right, the interpreter is probably older than the syntax."),
    Signature::new("U2102", Cause, "the script rejected its arguments",
        r": error: (unrecognized arguments|the following arguments are required|argument .*: (invalid|expected))",
        "compare the arguments after the script's name with what it accepts",
        "The script's own argument parser rejected the command line. `--local-rank` or `--local_rank` in the \
         message means that another launcher passed an argument this script does not declare: read `LOCAL_RANK` \
         from the environment instead."),
    Signature::new("U2103", Cause, "rank or world size is missing or wrong",
        r"environment variable [A-Za-z_]+ (expected|is needed), but not set|[Ii]nvalid (rank|world.?size)|\brank .* (must be|should be) less than|\] rank < size\. |\b[Rr]ank [0-9]+ (is )?out of (range|bounds)|KeyError: '((LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|PADDLE_[A-Z_]+)'|can't find PADDLE_[A-Z_]+|PADDLE_(TRAINER_ENDPOINTS|TRAINERS_NUM|TRAINER_ID)\b.* (length|must|should|mismatch|not (equal|match))",
        "take rank and world size from the environment, not from fixed numbers or old flags",
        "The program and the launcher disagree about the ranks of the job. Usually a rank or size is fixed in the script, \
         a variable was overwritten, or the script was started without a launcher."),
    Signature::new("U2104", Cause, "process group used before it was initialised",
        r"[Dd]efault process group has not been initialized|parallel environment (is|has) not (been )?initialized|[Cc]all (paddle\.distributed\.)?init_parallel_env",
        "call `init_process_group` (torch) or `init_parallel_env` (Paddle) first, in every rank",
        "A collective was called before the group was initialised, or after it was destroyed."),
    Signature::new("U2105", Cause, "processes started while the script was being imported",
        r"An attempt has been made to start a new process before|finished its bootstrapping phase",
        "put the start of the program below `if __name__ == \"__main__\":`",
        "With the start methods `spawn` and `forkserver` every child imports the script again. Code at its top level \
         that starts processes would start them endlessly, so Python refuses."),
    Signature::new("U2106", Cause, "Paddle rejected a call",
        r"\((InvalidArgument|NotFound|OutOfRange|AlreadyExists|PreconditionNotMet|PermissionDenied|ExecutionTimeout|Unimplemented|Unavailable|InvalidType)\) |^(InvalidArgument|NotFound|OutOfRange|AlreadyExists|PreconditionNotMet|PermissionDenied|ExecutionTimeout|Unimplemented|Unavailable|InvalidType)Error: ",
        "read the line that begins with `[Hint:`, and the operator's name below it",
        "A check inside Paddle failed. The word in parentheses is the kind of error, the sentence after it says what \
         was expected, and `[operator < … > error]` which operation it was. `FLAGS_call_stack_level=2` adds the \
         native stack.").general(),
    Signature::new("U2107", Cause, "a process is not in its own list of endpoints",
        r"^ValueError: '\S+:[0-9]+' is not in list",
        "`POD_IP` and `PADDLE_PORT` of a server must be an entry of `PADDLE_PSERVERS_IP_PORT_LIST`, as text",
        "A parameter server finds its index by looking up its own address and port in the list of all servers. They are \
         compared as text: a name in one place and an address in the other do not match. Usually one of the \
         variables was set by hand or by another launcher."),
    Signature::new("U2108", Cause, "the program read from stdin, which is empty",
        r"^bdb\.BdbQuit\b|^EOFError: EOF when reading a line",
        "with several ranks, stdin is `/dev/null`; `--stdin RANK` connects one of them to the terminal, for `breakpoint()` and `input()`",
        "`input()`, or the debugger that `breakpoint()` starts, reached the end of its input. A single rank has the stdin of \
         `umiak`. With several ranks, their stdin is `/dev/null`. `umiak launch --stdin 0 …` or `umiak run --stdin \
         trainer-0 …` connects one of them to stdin and the terminal, and shows its output."),
    Signature::new("U2201", Cause, "tensor shapes do not match",
        r"shapes cannot be multiplied|must match the size of tensor|Sizes of tensors must match|shape '\[.*\]' is invalid for input|(InvalidArgument\)|InvalidArgumentError:) .*([Ss]hape|\bdims?\b|[Dd]imension)|could not be broadcast together",
        "print the shapes just before the place named above",
        "An operation got tensors with incompatible sizes. If only one rank fails, look at its last, smaller batch."),
    Signature::new("U2202", Cause, "NaN or infinite value",
        // The frameworks' own checks. `loss nan` in a progress line is not an error, and a script's assertion explains
        // itself.
        r"^FloatingPointError\b|There are NAN or INF|[Ff]unction '\w+' returned nan values",
        "lower the learning rate, check the inputs of that step, look at mixed-precision scaling",
        "Training diverged, or an input contains NaN or infinite values. Repeat the step with the framework's \
         anomaly check to find the first operation that yields NaN."),
    Signature::new("U2203", Cause, "tensors on different devices",
        r"Expected all tensors to be on the same device|Input type .* and weight type .* should be the same",
        "move model and inputs to the rank's own device",
        "An operation mixes tensors of two devices, or of host and device. In distributed scripts the reason is \
         often a fixed `cuda:0` instead of the local rank's device."),
    Signature::new("U2204", Cause, "a checkpoint or data file is damaged",
        r"PytorchStreamReader failed|[Ii]nvalid magic number|Ran out of input|UnpicklingError|invalid load key|pickle data was truncated|truncated file|Invalid header or archive is corrupted|SafetensorError|BadZipFile|BadGzipFile|Compressed file ended before",
        "check the size of the file; a run that was stopped while saving leaves an incomplete file",
        "A file is truncated or has an unexpected format. Common reasons: the save was interrupted, several \
         ranks wrote the same path, or a Git LFS pointer was downloaded instead of the data."),
    Signature::new("U2205", Cause, "parameters that are not used in the loss",
        r"Expected to have finished reduction in the prior iteration",
        "set `find_unused_parameters=True`, or use every parameter in the loss",
        "Data-parallel training waits for the gradient of every parameter. Some parameters got none in this step, \
         for example because a branch of the model was skipped."),
    Signature::new("U2206", Cause, "endless recursion",
        r"^RecursionError\b|maximum recursion depth exceeded|[Ss]tack overflow",
        "the traceback shows which functions call each other",
        "Functions call each other endlessly, or a structure is nested deeper than Python allows."),
    Signature::new("U2207", Cause, "the checkpoint does not match the model",
        r"Error\(s\) in loading state_dict for|size mismatch for \S+: copying a param|(Missing|Unexpected) key\(s\) in state_dict|doesn't match parameter group|receives a shape .*, but the expected shape is",
        "build the model as it was when the checkpoint was saved; `module.` before every name indicates a wrapper",
        "Names or shapes in the file are not those of the model. Compare the options of both runs (vocabulary, \
         layers, number of classes, degree of parallelism). A prefix that all names share comes from a data-parallel \
         wrapper around the model that was saved.").exact(),
    Signature::new("U2208", Cause, "torch refuses to load the file in safe mode",
        r"Weights only load failed",
        "allow the types with `torch.serialization.add_safe_globals`, or pass `weights_only=False` for a file you trust",
        "Since torch 2.6 `torch.load` accepts tensors and plain types only. The file contains others: an optimiser, \
         arguments, a whole model. `weights_only=False` executes code from the file, so use it only for your own \
         files. A damaged file can cause the same message.").exact(),
    Signature::new("U2209", Cause, "an object cannot be sent to another process",
        r"[Cc](an't|annot) pickle |Can't get attribute '\w+' on <module",
        "define functions and classes at the top of a module, and open files and connections in the worker",
        "Loader workers and spawned processes receive their objects as pickles. Lambdas, nested functions, open \
         files, locks and connections cannot be pickled, and a class that is defined in the main script is not found \
         by a child that does not import it."),
    Signature::new("U2210", Cause, "CUDA was used before a fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "use the start method `spawn`, or touch the GPU only after the workers have started",
        "A process that has used CUDA cannot share it with forked children. Data sets that keep tensors on the GPU, \
         or a call to CUDA at import, are the usual reasons."),
    Signature::new("U2301", Cause, "the program crashed in native code",
        r"Segmentation fault|SIGSEGV\b",
        "run the rank with `PYTHONFAULTHANDLER=1` to see the Python line, or under a debugger",
        "A memory access in native code failed. Extensions built for another version of the framework or of Python \
         are the usual reason; a core dump and `gdb` show the function."),
    Signature::new("U2302", Cause, "instruction not supported by the processor",
        r"Illegal instruction|SIGILL\b|`Illegal instruction`",
        "install a build for this processor (often: one without AVX)",
        "The program was built for a newer processor than this host has. Clusters of mixed generations fail on \
         their oldest hosts only."),
    Signature::new("U2303", Cause, "memory corruption",
        r"double free or corruption|free\(\): invalid|malloc\(\): |corrupted (size|double-linked)|stack smashing detected|AddressSanitizer",
        "an extension in native code writes outside its memory; AddressSanitizer finds the place",
        "The C library detected that its own data was overwritten and stopped the process. The named line is where the \
         corruption was detected, not where it happened."),
    Signature::new("U2304", Cause, "bus error",
        r"Bus error|SIGBUS\b|`Access to an undefined portion of a memory object` is detected",
        "check `df -h /dev/shm` first; otherwise a mapped file was truncated, or its disk is failing",
        "The process accessed mapped memory that has no storage behind it. In training that is nearly always shared \
         memory that is full (containers: `--shm-size=8g` or `--ipc=host`). Otherwise a mapped file was truncated, \
         or its file system is full or failing.").general(),
    Signature::new("U2305", Cause, "arithmetic fault",
        r"Floating point exception|SIGFPE\b|`Erroneous arithmetic operation` is detected",
        "look for a division of integers by zero in native code, such as an empty batch or a world of size 0",
        "The processor stopped a division of integers by zero, in spite of the signal's name. Native code does this with \
         sizes of 0: an empty batch, an empty tensor, a group without members."),
    Signature::new("U2401", Consequence, "the data reader failed",
        r"Blocking queue is killed because the data reader raises an exception",
        "the reader's own error is further up in the same log",
        "The training loop asked for the next batch, but the thread or process that reads data had already failed. \
         This message is a consequence: the original error was printed before it."),
    Signature::new("U2402", Consequence, "a data loader worker ended unexpectedly",
        r"DataLoader worker \(pid\(?s?\)? [0-9, ]+\) exited unexpectedly|DataLoader [0-9]+ workers? exit unexpectedly",
        "run with no loader workers to see the worker's own error",
        "A process that reads data ended without a message to the training loop. Its own output may be further \
         up; lack of memory is a common reason."),
    Signature::new("U2403", Cause, "the data loader was too slow",
        r"DataLoader timed out after [0-9]+ seconds",
        "look at the storage and at the workers' locks; raise `timeout`, or use more workers",
        "No batch arrived within the data loader's time-out. Workers hang (a lock that was held during the \
         fork, a network file system) or one sample takes very long."),
    Signature::new("U2404", Consequence, "a launcher inside the rank reports a failure",
        r"ChildFailedError\b|ProcessExitedException|ProcessRaisedException|mpirun (noticed that process rank|detected that one or more processes exited)|MPI_ABORT was invoked on rank|Primary job +terminated normally, but|^srun: error: .*task.*: (Exited with exit code|Aborted|Killed|Segmentation fault|Terminated)",
        "the process it names printed its own error, further up or in a log of its own",
        "The rank starts processes itself (`torchrun`, `torch.multiprocessing.spawn`, `mpirun`, `srun`), and one of \
         them failed. This message is a consequence. Let umiak start the processes directly, so that it sees each of them.").general(),
    Signature::new("U2405", Consequence, "a program that the rank started failed",
        r"^subprocess\.CalledProcessError: |returned non-zero exit status [0-9]+|died with <Signals\.",
        "the program printed its own error, further up in the same log",
        "The rank runs another program and expects it to succeed. What that program printed comes before this \
         message, unless its output was captured.").general(),
    Signature::new("U3101", Cause, "out of host memory",
        r"^(numpy\S*\.)?(_Array)?MemoryError\b|Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: |\[Errno 12\]|Fail to alloc memory of [0-9]+ size|java\.lang\.OutOfMemoryError",
        "use fewer or smaller batches and loader workers, or ask for more memory",
        "An allocation of main memory was refused. Each rank and each loader worker holds its own copy of what it \
         reads: multiply before comparing with the host's memory or the container's limit.").grave(),
    Signature::new("U3102", Cause, "out of GPU memory",
        r"CUDA out of memory|CUDA error: out of memory|torch(\.cuda)?\.OutOfMemoryError|Cuda failure.*'out of memory'|RESOURCE_EXHAUSTED: Out of memory|Out of memory error on GPU|cudaErrorMemoryAllocation|CUDA error\(2\)|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "use a smaller batch, accumulate gradients, or check which other processes use that GPU (`nvidia-smi`)",
        "An allocation on the device failed. If the numbers in the message do not explain it, another process holds \
         memory of the same GPU: a job that was left running, or two ranks on one device. Memory that is reserved \
         but not used points to fragmentation.").grave(),
    Signature::new("U3103", Cause, "the OOM killer killed a process",
        r"killed by signal: Killed|[Oo]ut of memory: Killed process|oom-kill|oom_kill|OOM Killed|^Killed$|: line [0-9]+: +[0-9]+ Killed\b|cgroup out-of-memory handler|OOMKilled|terminated with signal SIGKILL",
        "use fewer loader workers or smaller batches, or raise the memory limit",
        "A process was ended with SIGKILL, which is how the kernel frees memory when the host or the container's \
         limit is exhausted. The kernel's log on that host names the process and its size.").grave(),
    Signature::new("U3104", Cause, "shared memory is full",
        r"killed by signal: Bus error|out of shared memory|insufficient shared memory|unable to (open|allocate|write|mmap).* shared memory|/dev/shm/\S* to [0-9]+ bytes",
        "enlarge `/dev/shm` (containers: `--shm-size=8g` or `--ipc=host`), or use fewer loader workers",
        "Loader workers pass batches through `/dev/shm`, which has 64 MiB in containers by default. Writing beyond its \
         end is a bus error.").grave(),
    Signature::new("U3105", Cause, "a resource of the framework is exhausted",
        r"ResourceExhausted",
        "the rest of the line says which one: memory of the GPU, of the host, or pinned memory",
        "An allocator or a table of the framework is full. If it is memory, a smaller batch or fewer workers help.").general(),
    Signature::new("U3201", Cause, "an assertion failed on the GPU",
        r"device-side assert triggered|CUDA error\(710\)",
        "look for an index out of range, such as a label that is not below the number of classes",
        "A kernel checked its input and stopped. It is reported late, so the traceback points somewhere after the \
         real place: run with `CUDA_LAUNCH_BLOCKING=1`, or the same step on CPU. Lines with `Assertion … failed` \
         above say which check it was.").grave(),
    Signature::new("U3202", Cause, "illegal memory access on the GPU",
        r"illegal memory access|CUDA error\(700\)|unspecified launch failure|CUDA error\(719\)|misaligned address",
        "run with `CUDA_LAUNCH_BLOCKING=1` to find the operation; suspect custom kernels first",
        "A kernel read or wrote outside its memory. The error appears at a later call. If it moves between \
         runs and hosts the program is at fault; if it stays with one GPU, suspect the device.").grave(),
    Signature::new("U3203", Cause, "GPU index does not exist",
        r"invalid device ordinal|CUDA error\(101\)|Invalid device id|[Ii]nvalid CUDAPlace|[Dd]evice id must be",
        "use the local rank, not the global one, to choose the device",
        "The rank asked for a device that is not among the visible ones. Indices count within \
         `CUDA_VISIBLE_DEVICES`: with one visible device its index is 0."),
    Signature::new("U3204", Cause, "the GPU failed",
        r"uncorrectable ECC error|CUDA error\(214\)|fallen off the bus|NVRM: Xid|CUDA error\(220\)|uncorrectable NVLink error|hardware stack error|Unable to determine the device handle|GPU is lost",
        "take the host out of use and have the device checked; `nvidia-smi -q` and `dmesg` say more",
        "The device or its connection failed. The program is not at fault; the job will run elsewhere.").grave(),
    Signature::new("U3205", Cause, "a CUDA call failed",
        r"CUDA error|CUDA runtime error|\(External\)\s+(CUDA|CUDNN|CUBLAS) error|cudaError[A-Z]",
        "run with `CUDA_LAUNCH_BLOCKING=1` so that the traceback points to the failing call",
        "The CUDA runtime reported an error that umiak has no separate entry for. Errors of kernels are reported \
         late: the traceback may point past the real place.").general(),
    Signature::new("U3206", Cause, "a CUDA library call failed",
        r"CUBLAS_STATUS_[A-Z_]+|CUDNN_STATUS_[A-Z_]+|CUSOLVER_STATUS_[A-Z_]+|CUFFT_[A-Z_]+",
        "check that the library versions match; `NOT_INITIALIZED` is often a full GPU or a bad index",
        "cuBLAS, cuDNN or another library of CUDA refused a call. After an earlier device error every call fails, \
         so look for the first one. Otherwise compare library versions, and free memory on the device."),
    Signature::new("U3207", Cause, "all GPUs are busy",
        r"CUDA-capable device\(s\) is/are busy|devices are busy or unavailable|CUDA error\(46\)",
        "another process has exclusive use of the GPU: `nvidia-smi` shows the compute mode and the process",
        "The device is in exclusive mode and taken, or in a state in which it accepts no process."),
    Signature::new("U4101", Cause, "NCCL could not use the network or the system",
        r"ncclSystemError|NCCL error.*unhandled system error|(NCCL|Nccl|nccl).*unhandled system error",
        "run with `NCCL_DEBUG=WARN`; name the interface with `NCCL_SOCKET_IFNAME`",
        "A system call inside NCCL failed, most often a connection over the wrong network interface, a firewall, or \
         shared memory that is too small. NCCL's warnings name the call.").general(),
    Signature::new("U4102", Cause, "NCCL failed",
        r"ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage|ncclInvalidArgument|NCCL error|NCCL failure|NCCL WARN .*[Ee]rror",
        "run with `NCCL_DEBUG=WARN` and compare NCCL, driver and CUDA versions on all hosts",
        "A call of NCCL failed. `invalid usage` means that the ranks called different operations or share a device; \
         an unhandled CUDA error usually has its own reason further up.").general(),
    Signature::new("U4103", Cause, "two ranks on one GPU",
        r"Duplicate GPU detected",
        "give each rank a device of its own, or use the gloo backend",
        "NCCL supports one rank per device. The ranks chose the same one: a fixed device number in the script, or \
         more processes than devices."),
    Signature::new("U4104", Cause, "ranks call different operations",
        r"Detected mismatch between collectives on ranks|appears not to match (sizes|strides) of the same param|DDP expects same model across all ranks|[Mm]ismatched collective detected|collective mismatch error|Message truncated : received|op\.preamble\.length <= op\.nbytes",
        "compare what each rank calls at this point: the order of operations, and the shapes",
        "All ranks of a group must call the same operations in the same order with the same sizes. Here they did \
         not: a branch that depends on the rank or on the data, a last batch of another size, or models that were \
         built differently.").exact(),
    Signature::new("U4105", Cause, "NCCL versions differ between hosts",
        r"Mismatched NCCL version detected",
        "use the same image or environment on every host, and check `LD_LIBRARY_PATH` for a second NCCL",
        "The ranks of a group must use one version of NCCL. A library of the system that comes before the framework's \
         own on one host is the usual reason; `NCCL_DEBUG=VERSION` prints which one a rank uses.").exact(),
    Signature::new("U4106", Cause, "the network interface was not found",
        r"[Nn]o (socket )?interface found|Unable to find (address|interface) for|Unable to resolve hostname to a \(local\) address|[Ii]nvalid network interface",
        "set `NCCL_SOCKET_IFNAME` or `GLOO_SOCKET_IFNAME` to an interface that every host has (`ip -br address`)",
        "The library looks for an interface by its name, or for one that has the host's address, and this host has \
         none. Names differ between hosts and inside containers; a prefix such as `eth` matches several.").exact(),
    Signature::new("U4107", Cause, "memory cannot be locked for the network card",
        r"ibv_(reg_mr|create_cq|create_qp)\S* .*(failed|Cannot allocate memory)|[Ll]ocked memory limit|RLIMIT_MEMLOCK|ibv_create_\w+: .*Cannot allocate memory",
        "raise the limit of locked memory (`ulimit -l unlimited`; containers: `--ulimit memlock=-1`)",
        "InfiniBand cards need locked memory, and its limit is small by default. \
         Daemons that start jobs have limits of their own, which a login shell does not show.").exact(),
    Signature::new("U4201", Waiting, "a collective operation timed out",
        r"Watchdog caught collective operation timeout|collective operation timeout: |Heartbeat monitor timed out|[Tt]imed out waiting for .*(collective|NCCL)|NCCL.*\btimed out\b",
        "a rank did not take part: look at the ranks that did not time out, and at what they did last",
        "This rank waited for an operation in which every rank must take part, and at least one did not: it hangs, is \
         slow, has ended, or calls another operation. The rank that reports the time-out is rarely \
         the one at fault."),
    Signature::new("U4202", Waiting, "timed out waiting for the store",
        r"Socket Timeout|wait timeout after [0-9]+ ?ms|[Tt]imed out after [0-9]+ seconds waiting for clients|client socket has timed out|connect\(\) timed out|DistStoreError|RendezvousTimeoutError|RendezvousConnectionError",
        "check that every rank started and that the master's address and port can be reached from here",
        "All ranks connect to a store that one of them serves. Not all connected in time: one did not start, is still \
         loading, or cannot reach the address. From this host, try to connect to it by hand."),
    Signature::new("U4203", Waiting, "gloo timed out waiting for a peer",
        r"gloo.*[Tt]imed out (waiting|after)|[Cc]onnect timeout \[|unbound_buffer\.cc:[0-9]+\] TIMEOUT",
        "look at the peer: it hangs, is slow, or cannot be reached over the chosen interface",
        "A gloo operation got no answer in time. If it happens at the start, name the interface with \
         `GLOO_SOCKET_IFNAME`; later, look at what the other ranks did last."),
    Signature::new("U4204", Waiting, "ranks did not reach the barrier",
        r"failed to pass monitoredBarrier|reached monitoredBarrier, but received errors",
        "look at the ranks that the message names",
        "The message lists the missing ranks: they hang before the barrier, or have exited."),
    Signature::new("U4205", Waiting, "gloo could not connect all ranks",
        r"connectFullMesh failed",
        "name the interface with `GLOO_SOCKET_IFNAME`; a host name that is 127.0.1.1 in `/etc/hosts` misleads gloo",
        "Every rank connects to every other. One did not connect in time, or announced an address that others cannot \
         reach: gloo uses the address that the host's own name resolves to, unless an interface is named.").general(),
    Signature::new("U4206", Waiting, "a peer did not answer over InfiniBand",
        r"NET/IB.*Got completion .*(error|status)|ibv_modify_qp\S* .*failed|transport retry counter exceeded|IBV_WC_RETRY_EXC_ERR",
        "look at the rank that the message names, then at the link: `ibstat`, the GID index, the switch",
        "The card got no answer: the peer's process has exited, or the path between the two does not work. At the \
         start it is usually the path (`NCCL_IB_GID_INDEX`, `NCCL_IB_HCA`, the network's settings), later the \
         peer or a cable.").exact(),
    Signature::new("U4207", Waiting, "a host cannot be reached",
        r"No route to host|Network is unreachable|Connection timed out|\[Errno 1(01|10|13)\]|EHOSTUNREACH|ETIMEDOUT",
        "try to reach the address from this host; check the firewall, the interface, and whether that host is up",
        "Packets to the address go nowhere: a firewall, a wrong interface or network, or a host that went down. The \
         rank that reports it is rarely at fault."),
    Signature::new("U4208", Waiting, "the parameter servers do not respond",
        r"^not ready endpoints: ?\[",
        "look at the servers that the line names: they have not started, have ended, or cannot be reached from here",
        "Paddle's trainers try their servers every three seconds, without a limit. The line names those that do not \
         answer: their logs (`serverlog.N`) show why."),
    Signature::new("U4209", Waiting, "timed out waiting for an answer",
        r"^(asyncio\.exceptions\.)?TimeoutError\b|^socket\.timeout\b",
        "look at the rank or server that did not answer: it hangs, is slow, or has ended",
        "The program waited for another process, with a time limit, and nothing came. If the process it waits for is a \
         rank of this job, look at what that rank did last.").general(),
    Signature::new("U9101", Victim, "stopped by SIGTERM",
        r"\*\*\* SIGTERM \(@|`Termination signal` is detected|SignalException: Process [0-9]+ got signal: (15|SIGTERM)|[Rr]eceived (signal (15|SIGTERM)|SIGTERM|15 death signal|Signals\.SIGTERM)\b",
        "the rank was stopped from outside: look at the other ranks, then at the scheduler's limits",
        "The rank received SIGTERM. The launcher sends it to all ranks as soon as one fails, so the reason is in another \
         rank's log. If no rank failed before, a scheduler or a user sent it."),
    Signature::new("U9102", Victim, "interrupted from the keyboard",
        r"^KeyboardInterrupt\b|[Rr]eceived (signal (2|SIGINT)|SIGINT|2 death signal|Signals\.SIGINT)\b|got signal: (2|SIGINT)\b",
        "Ctrl-C was pressed, or SIGINT was sent",
        "The rank was interrupted. This is not an error of the rank."),
    Signature::new("U9103", Victim, "a data loader worker was stopped",
        r"killed by signal: (Terminated|Hangup|Interrupt)",
        "look for the rank that failed first: workers end with their job",
        "A process that reads data received a termination signal, as all processes of a job do when it is stopped."),
    Signature::new("U9104", Victim, "the scheduler ended the job",
        r"CANCELLED AT .*(DUE TO|DUE to)|DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)|=>> PBS: job killed|TERM_(RUNLIMIT|MEMLIMIT|PREEMPT|OWNER)",
        "ask for more time, save checkpoints more often, and let the job continue from them",
        "The batch system stopped the job: its time limit was reached, it was pre-empted, or a node failed. The line \
         shows which. This is not an error of the program."),
    Signature::new("U9201", Victim, "the peer closed the connection",
        // Paddle's gloo reports TIMEOUT immediately where gloo itself reports that the peer closed.
        r"Connection closed by peer|TIMEOUT self_rank = [0-9]+ pair_rank = [0-9]+|[Rr]emote (host|end) closed (the )?connection|Socket closed$|^Connection(Aborted)?Error\b|\[Errno 103\]|ECONNABORTED",
        "the peer ended first: look at its log",
        "The process at the other end closed its side in the middle of an operation, as it does when it exits. \
         This rank failed because of it."),
    Signature::new("U9202", Victim, "the connection was reset by the peer",
        r"[Cc]onnection reset by peer|^ConnectionResetError\b|\[Errno 104\]|ECONNRESET",
        "the peer ended first: look at its log",
        "The process at the other end has exited, and the kernel there reset the connection. This rank failed because \
         of it."),
    Signature::new("U9203", Victim, "the connection was refused",
        r"[Cc]onnection refused|^ConnectionRefusedError\b|\[Errno 111\]|ECONNREFUSED",
        "no process listens there: the peer ended, or did not get that far; look at its log",
        "The address was reached, but no process listens on the port. The peer ended or has not started; if no \
         log shows that, the address or port is wrong."),
    Signature::new("U9204", Victim, "a broken pipe or connection",
        r"[Bb]roken pipe|^BrokenPipeError\b|\[Errno 32\]|EPIPE\b",
        "the process that should have read this ended first",
        "The rank wrote to a connection or pipe whose other end is closed: a store whose server ended, a peer, or a \
         process the output was piped into."),
    Signature::new("U9205", Victim, "NCCL lost a peer",
        r"ncclRemoteError|remote process (has )?exited|remote process exiting prematurely|[Cc]onnection closed by remote peer",
        "the peer ended first: look at its log",
        "NCCL detected that the process at the other end has exited. This rank failed because of it."),
    Signature::new("U9206", Victim, "the connection to the store was lost",
        r"failed to recv, got 0 bytes|Did the remote server shutdown or crash|Connection was likely closed|DistNetworkError|TCPStore.*([Cc]onnection|recvValue|sendBytes) (was )?(closed|failed)",
        "the rank that serves the store (rank 0 as a rule) ended first: look at its log",
        "The rank used the store that all ranks share, and its server no longer answers. The server ends with the rank \
         that hosts it."),
    Signature::new("U9207", Victim, "the communicator was aborted",
        r"NCCL communicator was aborted|communicator .* (was )?aborted|process group .* has been aborted",
        "another rank or thread failed first: look for an error before this one",
        "The group's connections were torn down while this rank still used them, because an earlier error was \
         detected elsewhere."),
    Signature::new("U9208", Victim, "a service no longer responds",
        r"\[E112\] ?Not connected to|\[E1014\]|failed to connect to all addresses|StatusCode\.UNAVAILABLE|[Rr]pc failed.*(unavailable|not connected)|brpc_ps_client\.cc:[0-9]+\] .* failed, err:|fleet (pull|push) (sparse|dense) failed",
        "the server ended first, or never started: look at its log",
        "The rank called a parameter server or another service, and nothing answered. Its log shows why it ended; if it \
         is still running, compare the endpoints."),
];
