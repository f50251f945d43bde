"""The steps of `make test-gpu`: each a program with a limit of its own; one that fails stops no other."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

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


def has_ended(done: Done) -> bool:
    """Whether a step ended by itself, so that the next call need not run it again."""
    return done.status in ("passed", "failed")


def steps(out: Path, study: Path) -> tuple[Step, ...]:
    """Steps in the order in which they run. The tests come last: they take what is left of the call, and the next call
    continues with those that have no outcome."""
    best, work = out / "best", str(out / "worker")
    trial = (*_WORKER, "run-trial", str(best / "config.json"), "--json", "--work-dir", work)
    tune = (_PYTHON, "-m", "shardtune", "tune", str(study), "--max-trials", "6", "--out", str(best))
    outcomes = ("-p", "benchmarks.gpu_report.outcomes", "--outcomes", str(out / OUTCOMES))
    tests = ("-q", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S:.0f}", *outcomes)
    return (
        Step("detect", 40, (*_WORKER, "detect", "--json", "--work-dir", work), "the devices and libraries are seen"),
        Step("measure-hardware", 80, (*_WORKER, "measure-hardware", "--json", "--work-dir", work), "rates of the card"),
        Step("tune", 130, (*tune, "--state-dir", str(out / "state")), "a study from its file to its answer"),
        Step("export", 90, ("bash", str(best / "launch.sh"), "--steps", "30"), "torchrun trains what was exported"),
        Step("warm", 90, trial, "the exported trial, forked from a fork server"),
        Step("cold", 90, (*trial, "--cold"), "the same in fresh interpreters"),
        Step("tests", TOTAL_S, (_PYTHON, "-m", "pytest", "tests/gpu", *tests), "each test of tests/gpu"),
    )


def run(step: Step, left_s: float, environment: dict[str, str]) -> Done:
    """Run one within its limit and the run's."""
    if left_s < 1:
        return Done(step, "left out", 0.0, "", "the time of the whole run was used up")
    began = time.monotonic()
    try:
        ended = subprocess.run(
            step.command,
            capture_output=True,
            text=True,
            timeout=min(step.limit_s, left_s),
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return Done(step, "late", time.monotonic() - began, _text(late.stdout), _text(late.stderr)[-2000:])
    except OSError as error:
        return Done(step, "failed", time.monotonic() - began, "", str(error))
    status = "passed" if ended.returncode == 0 else "failed"
    return Done(step, status, time.monotonic() - began, ended.stdout, ended.stderr[-2000:])


def _text(output: str | bytes | None) -> str:
    """Decode output, which comes as bytes where a time limit ended the step."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
