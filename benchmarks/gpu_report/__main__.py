"""`make test-gpu`: one verdict on a GPU host in ten minutes at most, in gpu-report/report.md and report.json.

A call that runs out of time keeps what it has; the next call continues there, on the same cards.

Exit codes: 0 everything passed, 1 something did not, 2 there is no CUDA device (at once, with the reason).
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu_report import steps
from benchmarks.gpu_report.verdict import markdown, verdict
from shardtune.workers.launchers.processes import rank_environment
from shardtune.workers.machine.inventory import DetectionFailed, find_gpus
from tests.support.ranks.gpu_models import study_for

NO_DEVICE = 2
_PROGRESS = "progress.json"
"""Name of the file with the ends of the steps, for the next call."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps and write the report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder of the report (gpu-report)")
    parser.add_argument("--fresh", action="store_true", help="run all steps, whatever an earlier call has finished")
    options = parser.parse_args(arguments)
    out: Path = options.out.resolve()
    fresh: bool = options.fresh
    try:
        gpus = find_gpus()
    except DetectionFailed as error:
        return _reject(str(error))
    if not gpus.devices:
        return _reject("no CUDA device is visible (NVML finds none; look at nvidia-smi and CUDA_VISIBLE_DEVICES)")
    out.mkdir(parents=True, exist_ok=True)
    study = out / "study.json"
    study.write_text(json.dumps(study_for(min(gpu.memory_bytes for gpu in gpus.devices), len(gpus.devices))))
    cards = [gpu.name for gpu in gpus.devices]
    if fresh:
        forget(out)
    done = run_steps(out, steps.steps(out, study), cards)
    figures = verdict(done, out / steps.OUTCOMES, cards)
    (out / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    (out / "report.md").write_text(markdown(figures))
    sys.stderr.write(f"{out / 'report.md'}\n")
    if figures["unfinished"]:
        sys.stderr.write(f"not finished: {', '.join(figures['unfinished'])}; run it once more to continue there\n")
    return 0 if figures["passed"] else 1


def run_steps(
    out: Path, planned: Sequence[steps.Step], cards: Sequence[str], total_s: float = steps.TOTAL_S
) -> list[steps.Done]:
    """Run the steps that have not ended in an earlier call on the same cards; all ends, in order."""
    earlier = _earlier(out, planned, cards)
    ends_s = time.monotonic() + total_s
    environment = rank_environment() | {"PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    done: list[steps.Done] = []
    for step in planned:
        before = earlier.get(step.name)
        if before is not None and steps.has_ended(before):
            done.append(before)
            continue
        sys.stderr.write(f"{step.name} (at most {step.limit_s:.0f} s): {step.means}\n")
        if steps.lacks_result(step, {end.step.name: end for end in done}):
            done.append(steps.Done(step, "left out", 0.0, "", f"{step.needs} has not ended"))
        else:
            end = steps.run(steps.after(step, earlier), ends_s - time.monotonic(), environment)
            # The lines of a study that goes on are those of both calls.
            done.append(replace(end, step=step, output=(before.output if before is not None else "") + end.output))
        sys.stderr.write(f"  {done[-1].status} after {done[-1].seconds:.0f} s\n")
        _keep(out, done, cards)
    if all(steps.has_ended(item) for item in done):
        # The next call begins anew, but for the outcomes, which the report needs until then.
        (out / _PROGRESS).unlink(missing_ok=True)
    return done


def _earlier(out: Path, planned: Sequence[steps.Step], cards: Sequence[str]) -> dict[str, steps.Done]:
    """Ends of steps by name in an earlier call that ran out of time; none, and no outcomes of tests, where that call
    finished or ran on other cards."""
    try:
        kept = json.loads((out / _PROGRESS).read_text())
        if kept["cards"] != list(cards):
            raise ValueError("other cards")
        by_name = {step.name: step for step in planned}
        ends = [steps.Done(by_name[name], **end) for name, end in kept["done"].items() if name in by_name]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        forget(out)
        return {}
    return {end.step.name: end for end in ends}


def _keep(out: Path, done: Sequence[steps.Done], cards: Sequence[str]) -> None:
    ends = {
        item.step.name: {name: getattr(item, name) for name in ("status", "seconds", "output", "last_words")}
        for item in done
    }
    partial = out / f"{_PROGRESS}.next"
    partial.write_text(json.dumps({"cards": list(cards), "done": ends}))
    partial.replace(out / _PROGRESS)


def forget(out: Path) -> None:
    """Remove what earlier calls kept, so that every step and test runs."""
    for name in (_PROGRESS, steps.OUTCOMES):
        (out / name).unlink(missing_ok=True)


def _reject(reason: str) -> int:
    sys.stderr.write(f"make test-gpu needs a CUDA GPU: {reason}\n")
    return NO_DEVICE


if __name__ == "__main__":
    sys.exit(main())
