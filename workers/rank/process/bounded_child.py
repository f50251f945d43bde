"""Child process of a rank that answers one question within a limit of time, and ends with the rank and with all that it
started."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

from shardtune.workers.rank.process import parent_death

LONGEST_ANSWER = 1 << 20
_POLL_S = 0.05


class ChildEnd(NamedTuple):
    """End of a child process."""

    code: int | None
    """Exit code of the process, or minus the number of the signal that ended it. None if the process took too long."""
    answer: bytes
    """First bytes of the file into which the process wrote its answer."""

    @property
    def described(self) -> str:
        """Words that say how the process ended, for a process that did not take too long."""
        assert self.code is not None
        return f"by signal {-self.code}" if self.code < 0 else f"with exit code {self.code}"


def ask(module: str, question: bytes, limit_s: float) -> ChildEnd:
    """Run `python -m MODULE ANSWER < QUESTION` within a time limit. The process reads its question from standard input
    and writes its result into the file ANSWER."""
    # Files without a name: nothing stays where this process is killed.
    with os.fdopen(os.memfd_create("question"), "w+b") as asked, os.fdopen(os.memfd_create("answer"), "w+b") as answer:
        asked.write(question)
        asked.seek(0)
        code = _run(module, asked, answer, limit_s)
        answer.seek(0)
        return ChildEnd(code, answer.read(LONGEST_ANSWER))


def peak_rss_mib(status: Path = Path("/proc/self/status")) -> float:
    """Largest resident memory of this process in MiB since it runs its program.

    `ru_maxrss` of getrusage would be no less than the peak of the process that started it: Linux keeps it over exec, and
    a child of vfork begins with its parent's memory.
    """
    line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
    # gVisor has no such line.
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if line is None else int(line.split()[1])
    return round(peak_kib / 1024, 1)


def _run(module: str, question: BinaryIO, answer: BinaryIO, limit_s: float) -> int | None:
    """Run the module and return its exit code; None if it took too long. In either case, all processes that it started
    are ended, too."""
    command = [
        sys.executable,
        # Else a `types.py` beside the study would be imported in place of Python's.
        "-P",
        "-m",
        module,
        f"/proc/self/fd/{answer.fileno()}",
    ]
    # The entry point may lie on a path that this process was given after its start.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, parent_death.PARENT_VARIABLE: str(os.getpid())}
    # DeepSpeed, too, must not look for the GPUs that are hidden here: a rank's own variable names them.
    environment |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        stdin=question,
        # What the code prints goes to the log: standard output may carry this process's own answer.
        stdout=sys.stderr.fileno(),
        env=environment,
        pass_fds=[answer.fileno()],
        start_new_session=True,
    )
    try:
        has_ended = _wait(process.pid, limit_s)
    finally:
        # Before the process is reaped: until then no other group can have its number.
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    return code if has_ended else None


def _wait(pid: int, limit_s: float) -> bool:
    """Whether a child process ends in time. Its exit status is left for the caller to collect."""
    deadline = time.monotonic() + limit_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
