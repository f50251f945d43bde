"""Stands in for `workers.rank.fork_server.server`: the same JSON lines, ranks that do as FAKE_ACTS (a JSON list, by rank) says.

Run as `fake_fork_server.py` it is the fork server; as `fake_fork_server.py TRIAL_DIR PROGRAM` (with RANK set) it is one cold rank.
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

DAEMON_S = os.environ.get("FAKE_DAEMON_S", "600")
ACTS = json.loads(os.environ.get("FAKE_ACTS", '["complete"]'))


def say(**event):
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def write(path, content):
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(content))
    scratch.rename(path)


def move(directory, step):
    write(directory / "progress.json", {"phase": "measuring", "step": step})


def report(directory, rank, **more):
    write(directory / f"rank_{rank}.json", {"rank": rank, **more})


def complete(directory, rank):
    record = {"loss": 2.0, "grad_norm": 1.0, "parameter_sum": 0.5, "parameter_square_sum": 0.25}
    report(
        directory,
        rank,
        status="complete",
        wrap_time_s=0.1 + rank,
        memory={"peak_allocated_gib": 0.1 * (rank + 1)},
        warmup_steps=2,
        measured_steps=6,
        window_step_times_s=[0.10 + 0.02 * rank, 0.11, 0.12],
        trajectory=[{"step": step, **record} for step in range(2)],
        losses=[2.0, 1.9],
    )


def restart(directory, rank):
    """Save in the first life, which has no folder of an earlier one beside it, and load in the second."""
    record = {"loss": 2.0, "grad_norm": 1.0, "parameter_sum": 0.5, "parameter_square_sum": 0.25}
    saves = not (directory / "first_life").exists()
    (directory / "checkpoint").mkdir(exist_ok=True)
    report(
        directory,
        rank,
        status="complete",
        trajectory=[{"step": step, **record} for step in (2, 3)],
        losses=[2.0] * (4 if saves else 2),
        checkpoint={
            "step": 2,
            "seconds": 0.5 + rank + (not saves),
            "checkpoint_bytes": 100,
            "files": 3,
            "written_bytes": 90 - 88 * rank,
        },
    )


def trace(directory, rank):
    """Record steps whose trace takes some seconds to read."""
    report(
        directory,
        rank,
        status="complete",
        warmup_step_times_s=[0.1] * 5,
        window_step_times_s=[0.2],
        losses=[2.0] * 8,
    )
    (directory / "traces").mkdir(exist_ok=True)
    event = '{"ph": "X", "name": "ProfilerStep#5", "ts": 1, "dur": 1},'
    (directory / "traces" / f"rank_{rank}.json").write_text('{"traceEvents": [' + event * 400_000)


def act(name, directory, rank):
    """Act as one rank and return its exit code."""
    print(f"rank {rank} acts {name}", flush=True)
    if name == "complete":
        move(directory, 1)
        complete(directory, rank)
    elif name == "resume_check":
        restart(directory, rank)
    elif name == "trace":
        trace(directory, rank)
    elif name == "crash_in_second_life":
        restart(directory, rank)
        return act("crash", directory, rank) if (directory / "first_life").exists() else 0
    elif name.startswith("save_and_"):
        (directory / "checkpoint").mkdir(exist_ok=True)
        return act(name.removeprefix("save_and_"), directory, rank)
    elif name in ("oom", "crash"):
        report(directory, rank, status="failed", failure={"kind": name, "message": f"rank {rank}: {name}"})
        return 1
    elif name == "late_crash":
        time.sleep(0.3)
        return act("crash", directory, rank)
    elif name == "exit":
        return 7
    elif name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "kill_host":
        # Process 1 of a PID namespace cannot be killed from within: it is asked to die.
        (directory / "die").touch()
        time.sleep(600)
    elif name == "hang":
        time.sleep(600)
    elif name == "busy":
        for step in range(10_000):
            move(directory, step)
            time.sleep(0.05)
    elif name in ("daemon", "daemon_and_end"):
        # Something that also sheds its environment, and with it our mark.
        os.spawnve(os.P_NOWAIT, "/bin/setsid", ["setsid", "sleep", DAEMON_S], {})
        complete(directory, rank)
        time.sleep(600 if name == "daemon" else 0)
    elif name == "orphan":
        # Something that leaves its process group and outlives its parent, as a compiler worker might.
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
        complete(directory, rank)
    return 0


def time_is_over(directory):
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME) > float((directory / "deadline").read_text())
    except (OSError, ValueError):
        return False


def fork_rank(directory, rank):
    host = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != host:
        os._exit(1)
    os.setsid()
    log = os.open(directory / f"rank_{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        code = act(ACTS[rank], directory, rank)
    finally:
        sys.stdout.flush()
        os._exit(code)


def main():
    if len(sys.argv) > 1:
        rank = int(os.environ["RANK"])
        sys.exit(act(ACTS[rank], Path(sys.argv[1]), rank))
    if "no_start" in ACTS:
        sys.exit("cannot import torch")
    say(
        event="ready",
        unsafe="it was told so" if "fork_unsafe" in ACTS else None,
        libraries={"torch": "0.0-fake"},
        isolation=os.environ.get("SHARDTUNE_ISOLATION"),
    )
    os.set_blocking(0, False)
    running, directory, store, pending = {}, None, None, b""
    while True:
        try:
            read = os.read(0, 65536)
        except BlockingIOError:
            read = None
        if read == b"":
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return
        *lines, pending = (pending + (read or b"")).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "store" in message:
                store = message["store"]
                say(event="store", dir=store, port=1)
                write(Path(store) / "store_order.json", message)
            elif "launch" in message and "reject" in ACTS:
                say(event="rejected", dir=message["launch"], reason="not today")
            elif "launch" in message:
                directory = Path(message["launch"])
                if "tell" in ACTS:
                    write(directory / "launch_order.json", message["as"])
                first, ranks = message["as"]["first_rank"], message["as"]["ranks"]
                running = {fork_rank(directory, rank): rank for rank in range(first, first + ranks)}
                say(event="started", dir=str(directory), pids=list(running))
            elif "deaf" not in ACTS:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
                if store == message["kill"]:
                    say(event="closed", dir=store)
        if directory is not None and (directory / "die").exists():
            os._exit(9)
        if directory is not None and time_is_over(directory):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        for pid, rank in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[pid]
                say(event="exited", dir=str(directory), rank=rank, code=os.waitstatus_to_exitcode(status))
        time.sleep(0.01)


if __name__ == "__main__":
    main()
