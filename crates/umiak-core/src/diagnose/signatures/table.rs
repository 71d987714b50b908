//! The table itself, in the order of codes; a line is matched in that order too. Broad patterns are
//! marked general, so that they give way to the others, and words of one case inside another one's
//! are marked exact, so that they come first.

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
    Signature::new("U1106", Cause, "a module was built for another NumPy",
        r"numpy\.\w+ size changed, may indicate binary incompatibility|compiled using NumPy 1\.x cannot be run in|module compiled against A[PB]I version|numpy\.core\.multiarray failed to import",
        "install builds that fit together, often `numpy<2`, or rebuild the module against the NumPy that is there",
        "A compiled module was made for a NumPy with another binary interface. The traceback names the module. Pin \
         NumPy to the version the module was built for, or install a newer build of the module; after `pip install` \
         of something else the two often drift apart.").exact(),
    Signature::new("U1107", Cause, "generated protobuf code does not fit the library",
        r"Descriptors cannot (not )?be created directly|cannot import name '(builder|runtime_version)' from 'google\.protobuf|protobuf\.runtime_version\.VersionError|Couldn't build proto file into descriptor pool",
        "install `protobuf<=3.20.3` or newer builds of the packages; `PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python` helps for the moment",
        "A package brings code that an older protobuf compiler generated, and the installed protobuf refuses it. \
         Either take protobuf back to a version that the package knows, or update the package. The pure Python \
         implementation accepts both and is slow.").exact(),
    Signature::new("U1108", Cause, "a file of another Python version",
        r"unsupported pickle protocol|bad magic number in '|requires a different Python|Python version mismatch",
        "use the same Python on every host, and for writing and reading",
        "Pickles and compiled modules are bound to the versions of Python that can read them. A checkpoint written by \
         a newer Python, or an environment that is shared by hosts with different ones, gives this error."),
    Signature::new("U1109", Cause, "text in another encoding",
        r"^Unicode(De|En)codeError\b|unsupported locale setting|codec can't (de|en)code ",
        "open text files with `encoding=\"utf-8\"`, and start with `PYTHONUTF8=1` or `LC_ALL=C.UTF-8`",
        "Python met bytes or characters that the chosen encoding does not have. Without a locale, as in many \
         containers and batch systems, the encoding is ASCII. If one file only is affected, it is damaged or not \
         text."),
    Signature::new("U1110", Cause, "an extension could not be built",
        r"Error building extension '|Failed to find C compiler|Ninja is required to load C\+\+ extensions|(CUDA|ROCM)_HOME environment variable is not set|detected CUDA version .* mismatches the version that was used to compile",
        "install a compiler, ninja and a CUDA toolkit of the framework's version, or build the extension beforehand",
        "The program compiles code when it starts, and something that is needed for it is missing or of another \
         version. Building once, before the job, and shipping the result also keeps ranks from building the same \
         files at the same time.").exact(),
    Signature::new("U1201", Cause, "a file or directory does not exist",
        r"^FileNotFoundError\b|No such file or directory|\[Errno 2\]",
        "check the path on the host where the rank ran; relative paths start at the launch directory",
        "The rank opened a path that is not there. On several hosts the usual reason is data or a checkpoint that \
         was placed on one of them only.").general(),
    Signature::new("U1202", Cause, "permission denied",
        r"^PermissionError\b|Permission denied|\[Errno 13\]|\[Errno 1\] Operation not permitted",
        "check the owner and mode of the path (a script needs its executable bit: `chmod +x`), and the user the ranks run as",
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
    Signature::new("U1208", Cause, "the path exists already",
        r"^FileExistsError\b|\[Errno 17\]",
        "create directories with `exist_ok=True`, or let one rank create them and the others wait",
        "A rank wanted to create something that is there. When all ranks make the same directory at the start, all \
         but the first fail: make one rank do it, followed by a barrier.").general(),
    Signature::new("U1209", Cause, "a mounted file system went away",
        r"Transport endpoint is not connected: '|Transport endpoint is not connected$|Cannot send after transport endpoint shutdown|\[Errno 108\]|Remote I/O error|\[Errno 121\]",
        "mount it again on that host, and look for the reason in its client's log",
        "The process behind a mount (a FUSE client), or the server's trust in this host, is gone: every access to the \
         path fails until it is mounted again. Clients that are killed for memory leave such mounts behind.").grave(),
    Signature::new("U1210", Cause, "a file is locked",
        r"unable to lock file|database is locked|No locks available|\[Errno 37\]|BlockingIOError: .*[Uu]nable to (create|open) file",
        "let one rank write the file; `HDF5_USE_FILE_LOCKING=FALSE` for files that are only read",
        "Somebody else holds the lock of a file, or its file system knows no locks. Ranks that open the same HDF5 or \
         SQLite file for writing exclude each other; a network file system may refuse locks altogether.").exact(),
    Signature::new("U1301", Cause, "the address is already in use",
        // brpc, in Paddle's parameter servers, names the endpoint only.
        r"Address already in use|EADDRINUSE|\[Errno 98\]|server\.cpp:[0-9]+\] Fail to listen |BrpcPsServer start failed, ip_port=",
        "another process holds the port: choose another one, or look for a job that was left running",
        "The rank wanted to listen on a port that somebody else has. `ss -ltnp` shows who. A port written into the \
         script collides as soon as two jobs share a host."),
    Signature::new("U1302", Cause, "a host name cannot be resolved",
        r"Name or service not known|Temporary failure in name resolution|nodename nor servname|gaierror",
        "use an address, or make the name known on every host",
        "The resolver does not know a host name. The name of another node is often known on that node only; `getent \
         hosts NAME` shows what this host knows."),
    Signature::new("U1303", Cause, "the limit of processes or threads is reached",
        r"can't start new thread|Resource temporarily unavailable|fork: retry|libgomp: Thread creation failed|pthread_create failed",
        "raise `ulimit -u` or the container's limit of processes, or use fewer threads and workers",
        "The kernel refused a new thread or process. Each rank starts loader workers and compute threads; with many \
         ranks on a host the sum reaches the limit of the user or of the container. `OMP_NUM_THREADS=1` is a quick \
         test."),
    Signature::new("U1304", Cause, "a download failed",
        r"Max retries exceeded with url|HTTPError: [45][0-9][0-9]|HTTP Error [45][0-9][0-9]: |couldn't connect to 'https?:|Connection to \S+ timed out\. \(connect timeout=",
        "download the data before the job and point the script at the copy",
        "The rank tried to fetch something from the network and could not. Compute nodes often have no way out. \
         Fetch models and data sets beforehand, and use the library's offline mode."),
    Signature::new("U1305", Cause, "the address does not belong to this host",
        r"Cannot assign requested address|\[Errno 99\]|EADDRNOTAVAIL|[Cc]annot assign requested address",
        "let the rank listen on an address of its own host, or on all of them",
        "The rank wanted to listen on an address that no interface of this host has: the address of another node, one \
         that is known outside only (a load balancer, a container's host), or one that DHCP has changed. For \
         connections going out it means that the range of local ports is used up."),
    Signature::new("U1306", Cause, "the server refused access",
        r"\b40[13] Client Error|HTTP Error 40[13]: |HTTPError: 40[13]\b|GatedRepoError|Cannot access gated repo|Invalid (user|username or) (token|password)|AccessDenied\) when calling",
        "give the ranks a valid token (`HF_TOKEN`, cloud keys) and ask for access to what they fetch",
        "A model hub or an object store knows who is asking, or that nobody is, and says no. Tokens live in the home \
         directory or in the environment of the shell where you logged in: check that the ranks see them, on every \
         host, and that they have not expired.").exact(),
    Signature::new("U1307", Cause, "a certificate was not accepted",
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|SSL certificate problem|certificate verify failed|x509: certificate",
        "install the organisation's root certificate, name it in `SSL_CERT_FILE` and `REQUESTS_CA_BUNDLE`, and check the clock",
        "The server's certificate is signed by an authority that this host does not know, has expired, or belongs to \
         another name. Proxies that look into traffic put their own certificate in its place. Images often lack the \
         package `ca-certificates`.").exact(),
    Signature::new("U1401", Cause, "the CUDA driver is too old",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old|forward compatibility was attempted|CUDA error\(35\)",
        "update the driver of the host, or install a framework built for its CUDA version",
        "The framework needs a newer driver than the host has. `nvidia-smi` shows the highest CUDA version the \
         driver supports. The driver belongs to the host, a container cannot bring a newer one."),
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
        "The driver is there and does not work for this process. Usual reasons: the module `nvidia-uvm` is not \
         loaded, a container lost its devices when the host reloaded its units, or an earlier fault left the driver \
         in a bad state."),
    Signature::new("U1405", Cause, "the GPUs' switch is not ready",
        r"system not yet initialized|CUDA error\(802\)|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY",
        "start the fabric manager on that host (`systemctl status nvidia-fabricmanager`), in the driver's version",
        "GPUs that are connected by NVSwitch need a service that sets the switches up. It does not run, or its \
         version is not that of the driver, as after an update of one of the two."),
    Signature::new("U1406", Cause, "the framework was built without what is asked for",
        r"not compiled with CUDA|Torch not compiled with CUDA enabled|Distributed package doesn't have (NCCL|MPI|GLOO) built in|is compiled without support for|Operator .*gen_nccl_id.* has not been registered|but your paddle is not compiled with",
        "install the GPU build of the framework, or choose the `gloo` backend",
        "The installed package has no support for the device or the backend. `pip install` without the right index \
         gives the CPU build; a requirement of another package may have replaced the GPU build with it."),
    Signature::new("U1407", Cause, "driver and library have different versions",
        r"Driver/library version mismatch|API mismatch: the (client|NVIDIA kernel module)",
        "reboot the host, or unload and load the driver's kernel modules",
        "The driver's files were updated while its kernel module was in use: the running one is still the old one. An \
         automatic update is the usual reason."),
    Signature::new("U1408", Cause, "this Paddle has no parameter servers",
        r"'paddle\.(base|fluid)\.\w+' has no attribute '(DistFleetWrapper|WorkerInfo)'|cannot import name 'CommContext' from 'paddle\.",
        "install a build that has them: `pip install paddlepaddle==2.6.2 'numpy<2' 'protobuf==4.25.*'` (Python 3.11)",
        "Parameter servers and `paddle.distributed.rpc` are parts of Paddle that not every package holds: those of \
         version 3 for CPU do not. Version 2.6.2 does.").exact(),
    Signature::new("U1501", Cause, "the scheduler gave fewer places than ranks",
        r"not enough slots available in the system|More processors requested than permitted|All nodes which are allocated for this job are already filled",
        "ask the scheduler for as many tasks as there are ranks, or correct the host list",
        "A launcher inside the rank wanted to start more processes than the allocation has room for. Compare the \
         number of processes with the slots in the host file and with what the scheduler granted."),
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
        r"environment variable [A-Za-z_]+ (expected|is needed), but not set|[Ii]nvalid (rank|world.?size)|\brank .* (must be|should be) less than|\] rank < size\. |\b[Rr]ank [0-9]+ (is )?out of (range|bounds)|KeyError: '((LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|PADDLE_[A-Z_]+)'|can't find PADDLE_[A-Z_]+|PADDLE_(TRAINER_ENDPOINTS|TRAINERS_NUM|TRAINER_ID)\b.* (length|must|should|mismatch|not (equal|match))",
        "take rank and world size from the environment, not from fixed numbers or old flags",
        "The program and the launcher disagree about who takes part. Usually a rank or size is fixed in the script, \
         a variable was overwritten, or the script was started without a launcher."),
    Signature::new("U2104", Cause, "the process group was used before it was made",
        r"[Dd]efault process group has not been initialized|parallel environment (is|has) not (been )?initialized|[Cc]all (paddle\.distributed\.)?init_parallel_env",
        "call `init_process_group` (torch) or `init_parallel_env` (Paddle) first, in every rank",
        "A collective call came before the group was initialised, or after it was destroyed."),
    Signature::new("U2105", Cause, "processes were started while the script was being imported",
        r"An attempt has been made to start a new process before|finished its bootstrapping phase",
        "put the start of the program below `if __name__ == \"__main__\":`",
        "With the start methods `spawn` and `forkserver` every child imports the script again. Code at its top level \
         that starts processes would start them without end, so Python refuses."),
    Signature::new("U2106", Cause, "Paddle refused a call",
        r"\((InvalidArgument|NotFound|OutOfRange|AlreadyExists|PreconditionNotMet|PermissionDenied|ExecutionTimeout|Unimplemented|Unavailable|InvalidType)\) |^(InvalidArgument|NotFound|OutOfRange|AlreadyExists|PreconditionNotMet|PermissionDenied|ExecutionTimeout|Unimplemented|Unavailable|InvalidType)Error: ",
        "read the line that begins with `[Hint:`, and the operator's name below it",
        "A check inside Paddle failed. The word in parentheses is the kind of error, the sentence after it says what \
         was expected, and `[operator < … > error]` which operation it was. `FLAGS_call_stack_level=2` adds the \
         native stack.").general(),
    Signature::new("U2107", Cause, "a process is not in its own list of endpoints",
        r"^ValueError: '\S+:[0-9]+' is not in list",
        "`POD_IP` and `PADDLE_PORT` of a server must be an entry of `PADDLE_PSERVERS_IP_PORT_LIST`, as text",
        "A parameter server finds out which one it is by looking for its own address and port in the list of all. \
         They are compared as text: a name in one place and an address in the other do not fit. Usually one of the \
         variables was set by hand, or by another launcher in between."),
    Signature::new("U2108", Cause, "the program read from stdin, and there was none",
        r"^bdb\.BdbQuit\b|^EOFError: EOF when reading a line",
        "ranks of a job with several have no stdin; `--stdin RANK` gives the caller's to one, for `breakpoint()` and `input()`",
        "`input()` found the end of its input, or the debugger that `breakpoint()` starts did. A rank that is alone has the \
         stdin of `umiak`. Where there are several, none has: their stdin is `/dev/null`. `umiak launch --stdin 0 …` or \
         `umiak run --stdin trainer-0 …` gives it to one of them, with the terminal, and shows what that one writes."),
    Signature::new("U2201", Cause, "tensor shapes do not fit",
        r"shapes cannot be multiplied|must match the size of tensor|Sizes of tensors must match|shape '\[.*\]' is invalid for input|(InvalidArgument\)|InvalidArgumentError:) .*([Ss]hape|\bdims?\b|[Dd]imension)|could not be broadcast together",
        "print the shapes just before the place named above",
        "An operation got tensors whose sizes do not go together. If one rank only fails, look at its last, smaller \
         batch."),
    Signature::new("U2202", Cause, "a value is not a number",
        // The frameworks' own checks. `loss nan` in a line of progress is no error, and a script's assertion says enough.
        r"^FloatingPointError\b|There are NAN or INF|[Ff]unction '\w+' returned nan values",
        "lower the learning rate, check the inputs of that step, look at mixed-precision scaling",
        "Training diverged, or an input holds values that are no numbers. Repeat the step with the framework's \
         anomaly check to find the first operation that yields NaN."),
    Signature::new("U2203", Cause, "tensors on different devices",
        r"Expected all tensors to be on the same device|Input type .* and weight type .* should be the same",
        "move model and inputs to the rank's own device",
        "An operation mixes tensors of two devices, or of host and device. In distributed scripts the reason is \
         often a fixed `cuda:0` where the local rank's device was meant."),
    Signature::new("U2204", Cause, "a checkpoint or data file is damaged",
        r"PytorchStreamReader failed|[Ii]nvalid magic number|Ran out of input|UnpicklingError|invalid load key|pickle data was truncated|truncated file|Invalid header or archive is corrupted|SafetensorError|BadZipFile|BadGzipFile|Compressed file ended before",
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
    Signature::new("U2207", Cause, "the checkpoint does not fit the model",
        r"Error\(s\) in loading state_dict for|size mismatch for \S+: copying a param|(Missing|Unexpected) key\(s\) in state_dict|doesn't match parameter group|receives a shape .*, but the expected shape is",
        "build the model as it was when the checkpoint was saved; `module.` before every name means a wrapper",
        "Names or shapes in the file are not those of the model. Compare the options of both runs (vocabulary, \
         layers, number of classes, degree of parallelism). A prefix that all names share comes from a data-parallel \
         wrapper around the model that was saved.").exact(),
    Signature::new("U2208", Cause, "torch does not load the file in its safe mode",
        r"Weights only load failed",
        "allow the types with `torch.serialization.add_safe_globals`, or pass `weights_only=False` for a file you trust",
        "Since torch 2.6 `torch.load` accepts tensors and plain types only. The file holds others: an optimiser, \
         arguments, a whole model. `weights_only=False` runs whatever the file says, so use it for your own files \
         only. A damaged file can give the same words.").exact(),
    Signature::new("U2209", Cause, "an object cannot be sent to another process",
        r"[Cc](an't|annot) pickle |Can't get attribute '\w+' on <module",
        "define functions and classes at the top of a module, and open files and connections in the worker",
        "Loader workers and spawned processes receive their objects as pickles. Lambdas, nested functions, open \
         files, locks and connections have none, and a class that is defined in the main script is not found by a \
         child that does not import it."),
    Signature::new("U2210", Cause, "CUDA was used before a fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "use the start method `spawn`, or touch the GPU only after the workers have started",
        "A process that has used CUDA cannot hand it on to forked children. Data sets that keep tensors on the GPU, \
         or a call to CUDA at import, are the usual reasons."),
    Signature::new("U2301", Cause, "the program crashed in native code",
        r"Segmentation fault|SIGSEGV\b",
        "run the rank with `PYTHONFAULTHANDLER=1` to see the Python line, or under a debugger",
        "A memory access in native code failed. Extensions built for another version of the framework or of Python \
         are the usual reason; a core dump and `gdb` show the function."),
    Signature::new("U2302", Cause, "the processor does not know an instruction",
        r"Illegal instruction|SIGILL\b|`Illegal instruction`",
        "install a build for this processor (often: one without AVX)",
        "The program was built for a newer processor than this host has. Clusters of mixed generations fail on \
         their oldest hosts only."),
    Signature::new("U2303", Cause, "memory of the process was corrupted",
        r"double free or corruption|free\(\): invalid|malloc\(\): |corrupted (size|double-linked)|stack smashing detected|AddressSanitizer",
        "an extension in native code writes where it must not; AddressSanitizer finds the place",
        "The C library noticed that its own records were overwritten and stopped the process. The line that is \
         named is where it was noticed, not where it was done."),
    Signature::new("U2304", Cause, "a bus error",
        r"Bus error|SIGBUS\b|`Access to an undefined portion of a memory object` is detected",
        "look at `df -h /dev/shm` first; else a mapped file became shorter, or its disk fails",
        "The process touched mapped memory that nothing stands behind. In training that is nearly always shared \
         memory that is full (containers: `--shm-size=8g` or `--ipc=host`). Otherwise a file that was mapped was \
         truncated by somebody, or its file system is full or failing.").general(),
    Signature::new("U2305", Cause, "an arithmetic fault",
        r"Floating point exception|SIGFPE\b|`Erroneous arithmetic operation` is detected",
        "look for a division of integers by zero in native code, such as an empty batch or a world of size 0",
        "The processor stopped a division of integers by zero, whatever the name says. Operations in native code do \
         so with sizes of 0: an empty batch, an empty tensor, a group without members."),
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
    Signature::new("U2403", Cause, "the data loader was too slow",
        r"DataLoader timed out after [0-9]+ seconds",
        "look at the storage and at the workers' locks; raise `timeout`, or use more workers",
        "The training loop waited for a batch as long as it was allowed to. Workers hang (a lock that was held during \
         the fork, a network file system) or one sample takes very long."),
    Signature::new("U2404", Consequence, "a launcher inside the rank reports a failure",
        r"ChildFailedError\b|ProcessExitedException|ProcessRaisedException|mpirun (noticed that process rank|detected that one or more processes exited)|MPI_ABORT was invoked on rank|Primary job +terminated normally, but|^srun: error: .*task.*: (Exited with exit code|Aborted|Killed|Segmentation fault|Terminated)",
        "the process it names printed its own error, further up or in a log of its own",
        "The rank starts processes itself (`torchrun`, `torch.multiprocessing.spawn`, `mpirun`, `srun`), and one of \
         them failed. This message is the echo. Let umiak start the processes directly, so that it sees each of them.").general(),
    Signature::new("U2405", Consequence, "a program that the rank started failed",
        r"^subprocess\.CalledProcessError: |returned non-zero exit status [0-9]+|died with <Signals\.",
        "the program printed its own error, further up in the same log",
        "The rank runs another program and expects it to succeed. What that program printed stands before this \
         message, unless its output was captured.").general(),
    Signature::new("U3101", Cause, "the host has no memory left",
        r"^(numpy\S*\.)?(_Array)?MemoryError\b|Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: |\[Errno 12\]|Fail to alloc memory of [0-9]+ size|java\.lang\.OutOfMemoryError",
        "use fewer or smaller batches and loader workers, or ask for more memory",
        "An allocation of main memory was refused. Each rank and each loader worker holds its own copy of what it \
         reads: multiply before comparing with the host's memory or the container's limit.").grave(),
    Signature::new("U3102", Cause, "the GPU has no memory left",
        r"CUDA out of memory|CUDA error: out of memory|torch(\.cuda)?\.OutOfMemoryError|Cuda failure.*'out of memory'|RESOURCE_EXHAUSTED: Out of memory|Out of memory error on GPU|cudaErrorMemoryAllocation|CUDA error\(2\)|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "use a smaller batch, accumulate gradients, or check who else uses that GPU (`nvidia-smi`)",
        "An allocation on the device failed. If the numbers in the message do not explain it, another process holds \
         memory of the same GPU: a job that was left running, or two ranks on one device. Memory that is reserved \
         but not used points to fragmentation.").grave(),
    Signature::new("U3103", Cause, "the kernel killed a process for memory",
        r"killed by signal: Killed|[Oo]ut of memory: Killed process|oom-kill|oom_kill|OOM Killed|^Killed$|: line [0-9]+: +[0-9]+ Killed\b|cgroup out-of-memory handler|OOMKilled|terminated with signal SIGKILL",
        "use fewer loader workers or smaller batches, or raise the memory limit",
        "A process was ended with SIGKILL, which is how the kernel frees memory when the host or the container's \
         limit is exhausted. The kernel's log on that host names the process and its size.").grave(),
    Signature::new("U3104", Cause, "shared memory is full",
        r"killed by signal: Bus error|out of shared memory|insufficient shared memory|unable to (open|allocate|write|mmap).* shared memory|/dev/shm/\S* to [0-9]+ bytes",
        "enlarge `/dev/shm` (containers: `--shm-size=8g` or `--ipc=host`), or use fewer loader workers",
        "Loader workers hand batches over in `/dev/shm`, and containers give it 64 MiB unless told otherwise. \
         Writing beyond its end is a bus error.").grave(),
    Signature::new("U3105", Cause, "a resource of the framework is used up",
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
        "A kernel read or wrote outside its memory. The error appears at a later call. If it moves about between \
         runs and hosts the program is at fault; if it stays with one GPU, suspect the device.").grave(),
    Signature::new("U3203", Cause, "a GPU number that does not exist",
        r"invalid device ordinal|CUDA error\(101\)|Invalid device id|[Ii]nvalid CUDAPlace|[Dd]evice id must be",
        "use the local rank, not the global one, to choose the device",
        "The rank asked for a device that is not among the visible ones. Numbers count within \
         `CUDA_VISIBLE_DEVICES`: with one visible device its number is 0."),
    Signature::new("U3204", Cause, "the GPU failed",
        r"uncorrectable ECC error|CUDA error\(214\)|fallen off the bus|NVRM: Xid|CUDA error\(220\)|uncorrectable NVLink error|hardware stack error|Unable to determine the device handle|GPU is lost",
        "take the host out of use and have the device checked; `nvidia-smi -q` and `dmesg` say more",
        "The device or its connection broke. The program is not at fault; the job will run elsewhere.").grave(),
    Signature::new("U3205", Cause, "a CUDA call failed",
        r"CUDA error|CUDA runtime error|\(External\)\s+(CUDA|CUDNN|CUBLAS) error|cudaError[A-Z]",
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
        "NCCL takes one rank for each device. The ranks chose the same one: a fixed device number in the script, or \
         more processes than devices."),
    Signature::new("U4104", Cause, "the ranks do different things",
        r"Detected mismatch between collectives on ranks|appears not to match (sizes|strides) of the same param|DDP expects same model across all ranks|[Mm]ismatched collective detected|collective mismatch error|Message truncated : received|op\.preamble\.length <= op\.nbytes",
        "compare what each rank calls at this point: the order of operations, and the shapes",
        "All ranks of a group have to call the same operations in the same order with the same sizes. Here they did \
         not: a branch that depends on the rank or on the data, a last batch of another size, or models that were \
         built differently.").exact(),
    Signature::new("U4105", Cause, "NCCL has different versions on the hosts",
        r"Mismatched NCCL version detected",
        "use the same image or environment on every host, and check `LD_LIBRARY_PATH` for a second NCCL",
        "The ranks of a group must use one version of NCCL. A library of the system that comes before the framework's \
         own on one host is the usual reason; `NCCL_DEBUG=VERSION` prints which one a rank uses.").exact(),
    Signature::new("U4106", Cause, "the network interface was not found",
        r"[Nn]o (socket )?interface found|Unable to find (address|interface) for|Unable to resolve hostname to a \(local\) address|[Ii]nvalid network interface",
        "set `NCCL_SOCKET_IFNAME` or `GLOO_SOCKET_IFNAME` to an interface that every host has (`ip -br address`)",
        "The library looks for an interface by its name, or for one that has the host's address, and this host has \
         none. Names differ between hosts and inside containers; a prefix such as `eth` fits several.").exact(),
    Signature::new("U4107", Cause, "memory cannot be locked for the network card",
        r"ibv_(reg_mr|create_cq|create_qp)\S* .*(failed|Cannot allocate memory)|[Ll]ocked memory limit|RLIMIT_MEMLOCK|ibv_create_\w+: .*Cannot allocate memory",
        "raise the limit of locked memory (`ulimit -l unlimited`; containers: `--ulimit memlock=-1`)",
        "InfiniBand cards work on memory that may not move, and the limit for such memory is small by default. \
         Daemons that start jobs have limits of their own, which a login shell does not show.").exact(),
    Signature::new("U4201", Waiting, "a collective operation timed out",
        r"Watchdog caught collective operation timeout|collective operation timeout: |Heartbeat monitor timed out|[Tt]imed out waiting for .*(collective|NCCL)|NCCL.*\btimed out\b",
        "a rank did not take part: look at the ranks that did not time out, and at what they did last",
        "This rank waited for an operation in which every rank has to take part, and at least one did not come: it \
         hangs, it is slow, it ended, or it calls another operation. The rank that reports the time-out is rarely \
         the one at fault."),
    Signature::new("U4202", Waiting, "waited in vain for the store",
        r"Socket Timeout|wait timeout after [0-9]+ ?ms|[Tt]imed out after [0-9]+ seconds waiting for clients|client socket has timed out|connect\(\) timed out|DistStoreError|RendezvousTimeoutError|RendezvousConnectionError",
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
    Signature::new("U4205", Waiting, "gloo could not connect all ranks",
        r"connectFullMesh failed",
        "name the interface with `GLOO_SOCKET_IFNAME`; a host name that means 127.0.1.1 in `/etc/hosts` misleads gloo",
        "Every rank connects to every other. One did not come in time, or gave an address that others cannot reach: \
         gloo takes the address that the host's own name stands for, unless an interface is named.").general(),
    Signature::new("U4206", Waiting, "a peer did not answer over InfiniBand",
        r"NET/IB.*Got completion .*(error|status)|ibv_modify_qp\S* .*failed|transport retry counter exceeded|IBV_WC_RETRY_EXC_ERR",
        "look at the rank that the message names, then at the link: `ibstat`, the GID index, the switch",
        "The card sent and got no answer: the peer's process is gone, or the path between the two does not work. At \
         the start it is usually the path (`NCCL_IB_GID_INDEX`, `NCCL_IB_HCA`, the network's settings), later the \
         peer or a cable.").exact(),
    Signature::new("U4207", Waiting, "a host cannot be reached",
        r"No route to host|Network is unreachable|Connection timed out|\[Errno 1(01|10|13)\]|EHOSTUNREACH|ETIMEDOUT",
        "try to reach the address from this host; check the firewall, the interface, and whether that host is up",
        "Packets to the address go nowhere: a firewall, a wrong interface or network, or a host that went down. The \
         rank that reports it is rarely at fault."),
    Signature::new("U4208", Waiting, "waited in vain for the parameter servers",
        r"^not ready endpoints: ?\[",
        "look at the servers that the line names: they have not started, have ended, or cannot be reached from here",
        "Paddle's trainers look for their servers every three seconds, without end. The line names those that do not \
         answer: their logs (`serverlog.N`) say why."),
    Signature::new("U9101", Victim, "stopped by SIGTERM",
        r"\*\*\* SIGTERM \(@|`Termination signal` is detected|SignalException: Process [0-9]+ got signal: (15|SIGTERM)|[Rr]eceived (signal (15|SIGTERM)|SIGTERM|15 death signal|Signals\.SIGTERM)\b",
        "somebody else ended this rank: look at the other ranks, then at the scheduler's limits",
        "The rank received a request to end. The launcher sends one to all ranks as soon as one fails, so the \
         reason is in another rank's log. If no rank failed before, a scheduler or a person sent it."),
    Signature::new("U9102", Victim, "interrupted from the keyboard",
        r"^KeyboardInterrupt\b|[Rr]eceived (signal (2|SIGINT)|SIGINT|2 death signal|Signals\.SIGINT)\b|got signal: (2|SIGINT)\b",
        "somebody pressed Ctrl-C or sent SIGINT",
        "The rank was interrupted. That is no error of its own."),
    Signature::new("U9103", Victim, "a data loader worker was told to end",
        r"killed by signal: (Terminated|Hangup|Interrupt)",
        "look at who failed first: workers end with their job",
        "A process that reads data received a signal to end, as all processes of a job do when it is stopped."),
    Signature::new("U9104", Victim, "the scheduler ended the job",
        r"CANCELLED AT .*(DUE TO|DUE to)|DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)|=>> PBS: job killed|TERM_(RUNLIMIT|MEMLIMIT|PREEMPT|OWNER)",
        "ask for more time, save checkpoints more often, and let the job continue from them",
        "The batch system stopped the job: its time was over, another job took its place, or a node went out of \
         service. The line says which. That is no error of the program."),
    Signature::new("U9201", Victim, "the peer closed the connection",
        // Paddle's gloo says TIMEOUT, with no time gone by, where gloo itself says that the peer closed.
        r"Connection closed by peer|TIMEOUT self_rank = [0-9]+ pair_rank = [0-9]+|[Rr]emote (host|end) closed (the )?connection|Socket closed$|^ConnectionError\b",
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
    Signature::new("U9208", Victim, "a service does not answer any more",
        r"\[E112\] ?Not connected to|\[E1014\]|failed to connect to all addresses|StatusCode\.UNAVAILABLE|[Rr]pc failed.*(unavailable|not connected)|brpc_ps_client\.cc:[0-9]+\] .* failed, err:|fleet (pull|push) (sparse|dense) failed",
        "the server ended first, or never started: look at its log",
        "The rank called a parameter server or another service, and nobody is there. Its log tells why it ended; if \
         it is still running, compare the endpoints."),
];
