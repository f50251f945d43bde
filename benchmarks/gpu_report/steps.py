"""The steps of `make test-gpu`: each a program with a limit of its own; one that fails stops no other."""

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

TOTAL_S = 600.0
"""Seconds of one call of `make test-gpu`."""
TEST_LIMIT_S = 150.0
"""Seconds after which a single test fails, so that one that hangs leaves time for the others."""
OUTCOMES = "outcomes.jsonl"
"""Name of the file of the tests' outcomes."""
_PYTHON = sys.executable
_WORKER = (_PYTHON, "-m", "shardtune.workers")


@dataclass(frozen=True)
class Step:
    """One program of the run."""

    name: str
    limit_s: float
    command: tuple[str, ...]
    means: str
    """Meaning of the step's success."""
    needs: str = ""
    """Name of the earlier step whose result the step uses; empty where it uses none."""
    continued_by: tuple[str, ...] = ()
    """Command that continues the step after a call in which it was late; empty where it begins anew."""


@dataclass(frozen=True)
class Done:
    """End of a step, in this call or an earlier one."""

    step: Step
    status: str
    """`passed`, `failed`, `late` (its limit), or `left out` (the run's)."""
    seconds: float
    output: str
    """Text that the step wrote to stdout."""
    last_words: str
    """The end of its stderr."""


def after(step: Step, ends: dict[str, Done]) -> Step:
    """The step as it runs after these ends of steps, in this call or an earlier one: with the command that continues it
    where it was late."""
    was_late = step.name in ends and ends[step.name].status == "late"
    return replace(step, command=step.continued_by) if was_late and step.continued_by else step


def lacks_result(step: Step, ends: dict[str, Done]) -> bool:
    """Whether the step has to wait for a later call, because the step that it needs has not ended."""
    return bool(step.needs) and step.needs in ends and not has_ended(ends[step.needs])


def has_ended(done: Done) -> bool:
    """Whether a step ended by itself, so that the next call need not run it again."""
    return done.status in ("passed", "failed")


def steps(out: Path, study: Path) -> tuple[Step, ...]:
    """Steps in the order in which they run. The tests come last: they take what is left of the call, and the next call
    continues with those that have no outcome."""
    best, work = out / "best", str(out / "worker")
    trial = (*_WORKER, "run-trial", str(best / "config.json"), "--json", "--work-dir", work)
    tune = (_PYTHON, "-m", "shardtune", "tune", "--out", str(best), "--state-dir", str(out / "state"))
    begin, resume = (*tune, str(study), "--max-trials", "6"), (*tune, "--resume")
    launch = ("bash", str(best / "launch.sh"))
    outcomes = ("-p", "benchmarks.gpu_report.outcomes", "--outcomes", str(out / OUTCOMES))
    tests = ("-q", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S:.0f}", *outcomes)
    return (
        Step("detect", 40, (*_WORKER, "detect", "--json", "--work-dir", work), "the devices and libraries are seen"),
        Step("measure-hardware", 80, (*_WORKER, "measure-hardware", "--json", "--work-dir", work), "rates of the card"),
        # On an H200 the answer may take longer than one limit: 6 trials, 15 to 30 runs of 6 to 15 s, and a resume check.
        Step("tune", 130, begin, "a study from its file to its answer", continued_by=resume),
        Step("export", 90, (*launch, "--steps", "30"), "torchrun trains what was exported", needs="tune"),
        Step("warm", 90, trial, "the exported trial, forked from a fork server", needs="tune"),
        Step("cold", 90, (*trial, "--cold"), "the same in fresh interpreters", needs="tune"),
        Step("tests", TOTAL_S, (_PYTHON, "-m", "pytest", "tests/gpu", *tests), "each test of tests/gpu"),
    )


def run(step: Step, left_s: float, environment: dict[str, str]) -> Done:
    """Run a step within its limit and that of the whole call, in `left_s` seconds."""
    if left_s < 1:
        return Done(step, "left out", 0.0, "", "the time of the whole run was used up")
    began = time.monotonic()
    try:
        program = subprocess.Popen(
            step.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        return Done(step, "failed", time.monotonic() - began, "", str(error))
    with program:
        try:
            output, last_words = program.communicate(timeout=min(step.limit_s, left_s))
            status = "passed" if program.returncode == 0 else "failed"
        except subprocess.TimeoutExpired as late:
            output, last_words, status = _text(late.stdout), _text(late.stderr), "late"
        finally:
            _end(program)
    return Done(step, status, time.monotonic() - began, output, last_words[-2000:])


def _end(program: "subprocess.Popen[str]") -> None:
    """End a program that still runs, with all processes below it. torchrun gives each rank a session of its own, so that
    ranks would outlive it and keep their GPUs."""
    if program.poll() is not None:
        return
    below = psutil.Process(program.pid).children(recursive=True)
    program.kill()
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _text(output: str | bytes | None) -> str:
    """Decode output, which comes as bytes where a time limit ended the step."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
