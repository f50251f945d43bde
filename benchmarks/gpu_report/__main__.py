"""`make test-gpu`: one verdict on a GPU host in ten minutes at most, in gpu-report/report.md and report.json.

Exit codes: 0 everything passed, 1 something did not, 2 there is no CUDA device (at once, with the reason).
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_report import steps
from benchmarks.gpu_report.verdict import markdown, verdict
from shardtune.workers.launchers.processes import rank_environment
from shardtune.workers.machine.inventory import DetectionFailed, find_gpus
from tests.support.ranks.gpu_models import study_for

TOTAL_S = 600.0
NO_DEVICE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps and write the report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make test-gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder of the report (gpu-report)")
    out: Path = parser.parse_args(arguments).out.resolve()
    try:
        gpus = find_gpus()
    except DetectionFailed as error:
        return _reject(str(error))
    if not gpus.devices:
        return _reject("no CUDA device is visible (NVML finds none; look at nvidia-smi and CUDA_VISIBLE_DEVICES)")
    out.mkdir(parents=True, exist_ok=True)
    study = out / "study.json"
    study.write_text(json.dumps(study_for(min(gpu.memory_bytes for gpu in gpus.devices), len(gpus.devices))))
    ends_s = time.monotonic() + TOTAL_S
    environment = rank_environment() | {"PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"}
    done = []
    for step in steps.steps(out, study):
        sys.stderr.write(f"{step.name} (at most {step.limit_s:.0f} s): {step.means}\n")
        done.append(steps.run(step, ends_s - time.monotonic(), environment))
        sys.stderr.write(f"  {done[-1].status} after {done[-1].seconds:.0f} s\n")
    figures = verdict(done, out / "junit.xml", [gpu.name for gpu in gpus.devices])
    (out / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    (out / "report.md").write_text(markdown(figures))
    sys.stderr.write(f"{out / 'report.md'}\n")
    return 0 if figures["passed"] else 1


def _reject(reason: str) -> int:
    sys.stderr.write(f"make test-gpu needs a CUDA GPU: {reason}\n")
    return NO_DEVICE


if __name__ == "__main__":
    sys.exit(main())
