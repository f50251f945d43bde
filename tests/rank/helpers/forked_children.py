"""Answers of processes that `bounded_child` starts, as forks of one that has their libraries imported: 8 s of a core each.

What is tested is what such a process does and how it is ended, not its start; cold starts have tests of their own.
"""

import os
import runpy
import signal
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.step_trace import StepTrace, TraceFailure
from shardtune.api_schemas.training.workload import Workload
from shardtune.workers.rank.own_code import trace_process
from shardtune.workers.rank.process import bounded_child
from tests.support.processes import preloaded_forks


def traced(spec: ModelSpec, workload: Workload, folder: Path, limit_s: float = 60.0) -> StepTrace | TraceFailure:
    """Answer of `trace_process.trace` for own code that lies in a folder."""
    texts = spec.model_dump_json(), workload.model_dump_json(), limit_s
    kind, _, text = outcome_of(trace, *texts, folder=folder, path=[folder]).partition(" ")
    return {"StepTrace": StepTrace, "TraceFailure": TraceFailure}[kind].model_validate_json(text)


def trace(spec: str, workload: str, limit_s: float = 60.0) -> str:
    """Kind and content of what `trace_process.trace` returns."""
    answer = trace_process.trace(ModelSpec.model_validate_json(spec), Workload.model_validate_json(workload), limit_s)
    return f"{type(answer).__name__} {answer.model_dump_json()}"


def outcome_of(call: Callable[..., str], *arguments: Any, folder: Path, path: Sequence[Path] = ()) -> str:
    """Text that a function returns in a process whose bounded children are forks; `path` is where it imports from, too."""
    name = uuid.uuid4().hex
    answer, log = folder / f"{name}.txt", folder / f"{name}.log"
    preloaded_forks.fork(_write, answer, path, call, *arguments, output=log).join()
    assert answer.exists(), log.read_text()[-4000:]
    return answer.read_text()


def _write(answer: Path, path: Sequence[Path], call: Callable[..., str], *arguments: Any) -> None:
    sys.path[:0] = map(str, path)
    fork_children()
    answer.write_text(call(*arguments))


def fork_children() -> None:
    """Have this process, itself a fork with one thread, fork its bounded children."""
    bounded_child.subprocess = SimpleNamespace(Popen=_ForkedModule)  # type: ignore[attr-defined]


class _ForkedModule:
    """What `bounded_child` asks of a `subprocess.Popen` of `python -P -m MODULE ANSWER`."""

    def __init__(
        self,
        command: Sequence[str],
        stdin: BinaryIO,
        stdout: int,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        start_new_session: bool,
    ) -> None:
        assert list(command[1:3]) == ["-P", "-m"] and start_new_session
        self.pid = os.fork()
        if self.pid == 0:
            _become(command[3:], stdin.fileno(), stdout, env)
        # As after Popen: the child has its session before anybody ends the group.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Exit code, or minus the number of the signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become(module: Sequence[str], stdin: int, stdout: int, environment: Mapping[str, str]) -> None:
    code = 1
    try:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        sys.stdin = os.fdopen(0)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = environment["PYTHONPATH"].split(os.pathsep)
        sys.argv = list(module)
        runpy.run_module(module[0], run_name="__main__", alter_sys=True)
        code = 0
    finally:
        # Neither the caller's code nor its end belongs to this process.
        os._exit(code)
