#!/usr/bin/env python3
"""The conformance probe: a "training script" that records how it was started.

It replaces a user's script under any launcher, and needs only Python's standard library. It

1. prints one line on stdout (`probe rank <rank> ready`) and one on stderr;
2. writes `<UMIAK_PROBE_OUT>/probe.<rank>.json`, by a rename, so a reader never sees an incomplete file;
3. exits as `UMIAK_PROBE_EXIT` says.

`UMIAK_PROBE_EXIT` is a comma list of `rank:code`, for example `1:7` or `0:3,2:1`. A rank in the
list waits until its peers have reported, sleeps 0.2 s, and exits with its code; a negative code is a signal.
`1:7@0` applies to the first attempt only. When the list has an entry for this attempt, a rank that is not in the
list waits until the launcher stops it. Unset or empty, every rank exits 0 at once. With `UMIAK_PROBE_ERROR` a rank
that fails writes torch's error file first.

The rank is `PADDLE_TRAINER_ID` or `RANK`. Reports of later attempts have the number of the attempt in their name,
and `again` in the name of the rank. In a job with servers only trainers have one; the others are named by role
and number, for example `pserver-1`. A server listens on its port. All of them run until the trainers are
done or the launcher stops them; a trainer is done when all processes have reported.
"""

import json
import os
import resource
import signal
import socket
import sys
import time

# Limits the life of a rank that the launcher never stops.
LONGEST_WAIT_SECONDS = 120.0
EXIT_NOBODY_STOPPED_US = 98


# The variable that lists the endpoints of each role, in a job with servers.
LISTS = {
    "PSERVER": "PADDLE_PSERVERS_IP_PORT_LIST",
    "TRAINER": "PADDLE_TRAINER_ENDPOINTS",
    "COORDINATOR": "PADDLE_COORDINATOR_ENDPOINTS",
    "HETER_TRAINER": "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
}


def listed(env, role):
    return [endpoint for endpoint in env.get(LISTS[role], "").split(",") if endpoint]


def rank_name(env):
    role = env.get("TRAINING_ROLE", "TRAINER")
    if role == "TRAINER":
        return env.get("PADDLE_TRAINER_ID") or env.get("RANK", "none")
    ports = [endpoint.rpartition(":")[2] for endpoint in listed(env, role)]
    return f"{role.lower()}-{ports.index(env['PADDLE_PORT'])}"


def attempt():
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def suffix():
    """Returns the end of the report's file name."""
    return f".{attempt()}.json" if attempt() else ".json"


def text(raw):
    """Returns bytes as text for JSON; bytes outside UTF-8 appear as `\\xNN`."""
    return raw.decode("utf-8", "backslashreplace")


def link_target(path):
    try:
        return text(os.readlink(os.fsencode(path)))
    except OSError:
        return None


def open_descriptors():
    """Returns every open descriptor and its target, except the one that listed the directory."""
    targets = {fd: link_target(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    return {fd: target for fd, target in targets.items() if target is not None}


def command_line():
    """Returns the command with interpreter and options: `-u` is visible only here."""
    with open("/proc/self/cmdline", "rb") as file:
        return [text(word) for word in file.read().split(b"\0")[:-1]]


def signal_masks():
    """Returns the kernel's masks. Python itself ignores SIGPIPE and SIGXFSZ and catches SIGINT."""
    masks = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            key, _, value = line.partition(":")
            if key in ("SigBlk", "SigIgn", "SigCgt"):
                masks[key] = value.strip()
    return masks


def limit(value):
    return None if value == resource.RLIM_INFINITY else value


def umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return f"{mask:04o}"


def observe(started):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pid = os.getpid()
    return {
        "version": 1,
        "rank": rank_name(os.environ) + " again" * attempt(),
        "started_unix": started,
        "env": {text(name): text(value) for name, value in sorted(os.environb.items())},
        "argv": [text(os.fsencode(word)) for word in sys.argv],
        "command": command_line(),
        "executable": sys.executable,
        "python_flags": {
            name: getattr(sys.flags, name)
            for name in dir(sys.flags)
            if not name.startswith(("_", "n_")) and not callable(getattr(sys.flags, name))
        },
        # True for `-u` and for PYTHONUNBUFFERED alike.
        "unbuffered": bool(sys.stdout.write_through),
        "cwd": text(os.getcwdb()),
        "umask": umask(),
        "pid": pid,
        "ppid": os.getppid(),
        "pgid": os.getpgid(0),
        "sid": os.getsid(0),
        "is_session_leader": os.getsid(0) == pid,
        "stdin": link_target("/proc/self/fd/0"),
        "stdout": link_target("/proc/self/fd/1"),
        "stderr": link_target("/proc/self/fd/2"),
        "descriptors": open_descriptors(),
        "signals": signal_masks(),
        "nofile": {"soft": limit(soft), "hard": limit(hard)},
        "cpus": sorted(os.sched_getaffinity(0)),
    }


def write_report(report):
    out = os.environ.get("UMIAK_PROBE_OUT")
    if not out:
        return
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"probe.{rank_name(os.environ)}{suffix()}")
    draft = f"{path}.{report['pid']}.tmp"
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1, sort_keys=True)
        file.write("\n")
    os.replace(draft, path)


def planned_exits(plan):
    exits = {}
    for entry in filter(None, (part.strip() for part in plan.split(","))):
        entry, _, only = entry.partition("@")
        rank, _, code = entry.rpartition(":")
        if not only or int(only) == attempt():
            exits[rank] = int(code)
    return exits


def await_files(kind, count):
    out, deadline = os.environ.get("UMIAK_PROBE_OUT"), time.monotonic() + 20.0
    while out and time.monotonic() < deadline:
        if sum(name.startswith(f"{kind}.") and name.endswith(suffix()) for name in os.listdir(out)) >= count:
            return
        time.sleep(0.01)


def await_peers():
    """Waits for all reports: a peer stopped before its report would look like a fault of the launcher."""
    env = os.environ
    if "TRAINING_ROLE" in env:
        await_files("probe", sum(len(listed(env, role)) for role in LISTS))
    else:
        await_files("probe", int(env.get("LOCAL_WORLD_SIZE") or env.get("PADDLE_TRAINERS_NUM", "1")))


def serve(env):
    """Listens, which trainers may wait for, until the trainers are done."""
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if env["TRAINING_ROLE"] == "PSERVER":
        door.bind(("127.0.0.1", int(env["PADDLE_PORT"])))
        door.listen()
    await_files("done", int(env["PADDLE_TRAINERS_NUM"]))


def finish(env, rank):
    """Tells the servers that this trainer is done."""
    await_peers()
    with open(os.path.join(env["UMIAK_PROBE_OUT"], f"done.{rank}.json"), "w", encoding="utf-8"):
        pass


def write_error():
    """Writes the error file of torch's `record` decorator."""
    message = {"message": "ValueError: bad batch", "extraInfo": {"py_callstack": "the stack", "timestamp": "1"}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w", encoding="utf-8") as file:
        json.dump({"message": message}, file)


def fail(code):
    if os.environ.get("UMIAK_PROBE_ERROR"):
        write_error()
    if code < 0:
        os.kill(os.getpid(), -code)
        signal.pause()
    return code


def main():
    started = time.time()
    report = observe(started)
    # Tracebacks of ranks that share a console would run into each other.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    rank = rank_name(os.environ)
    # One write per line: `print` under `-u` writes the text and its newline apart.
    os.write(1, f"probe rank {rank} ready\n".encode())
    os.write(2, f"probe rank {rank} writes to stderr\n".encode())
    write_report(report)

    exits = planned_exits(os.environ.get("UMIAK_PROBE_EXIT", ""))
    role = os.environ.get("TRAINING_ROLE")
    if role not in (None, "TRAINER"):
        serve(os.environ)
    elif role and not exits:
        finish(os.environ, rank)
    if not exits:
        return 0
    if rank in exits:
        await_peers()
        time.sleep(0.2)
        return fail(exits[rank])
    time.sleep(LONGEST_WAIT_SECONDS)
    return EXIT_NOBODY_STOPPED_US


if __name__ == "__main__":
    sys.exit(main())
