"""`shardtune export`: write a configuration for its consumer, have that read it, and measure what it loses."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.exports import Export
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.cli.errors import PlatformFailure
from shardtune.service.cli.processes import MODULE
from shardtune.service.cli.write_files import write_files

_CHECK_S = 180.0
_PAIRS = 3


@dataclass(frozen=True)
class LossyOptions:
    """How the lossy form is measured again."""

    state_dir: Path
    worker_options: Sequence[str] = ()


def run(export: Export, out: Path, lossy: LossyOptions | None) -> dict[str, Any]:
    """Write the files; the answer of `--json`.

    Raises:
        PlatformFailure: the runs of the lossy form failed.
    """
    answer: dict[str, Any] = {
        "format": export.format,
        "exports": write_files(out, export.files),
        "release": export.release,
        "lossy": list(export.lossy),
    }
    if export.format != "standard":
        answer["check"] = _check(export, out)
    if lossy is not None:
        answer["lossy_measured"] = _measured(export, out, lossy)
    return answer


def as_text(answer: dict[str, Any]) -> str:
    """The answer for a person."""
    lines = list(answer["exports"])
    if answer["release"] is not None:
        lines.append(f"written for {answer['release']}")
        lines += [f"lossy: {line}" for line in answer["lossy"]]
        check = answer["check"]
        lines.append(f"{'checked' if check['checked'] else 'not checked'}: {check['says']}")
    measured = answer.get("lossy_measured")
    if measured is not None:
        lines.append(measured["says"])
    return "\n".join(lines)


def _check(export: Export, out: Path) -> dict[str, Any]:
    """Ask the consumer, where it is installed; a worker's package may be missing here altogether."""
    command = [*MODULE, "shardtune.workers.rank.check_export", export.format, str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CHECK_S, check=False)
    except subprocess.TimeoutExpired:
        return {"checked": False, "says": f"the consumer did not answer within {_CHECK_S:.0f} s"}
    try:
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"checked": False, "says": f"the consumer could not be asked here: {last}"}
    return found


def _measured(export: Export, out: Path, options: LossyOptions) -> dict[str, Any]:
    """Pairs of runs of what was measured and of what the consumer does, alternating, on this machine."""
    if export.lossy_config is None:
        return {
            "ratio": None,
            "says": "what the consumer does differs in no knob, so there is nothing to measure again",
        }
    task = TrialTask.model_validate_json((out / "config.json").read_text())
    ratios = []
    for pair in range(_PAIRS):
        order = [task.config, export.lossy_config]
        speeds = {}
        for config in order if pair % 2 == 0 else order[::-1]:
            speeds[config] = _run(task, config, options).tokens_per_s_per_gpu
            sys.stderr.write(f"{config.describe()}: {speeds[config]:,.0f} tokens/s/GPU\n")
        ratios.append(speeds[export.lossy_config] / speeds[task.config])
    shown = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    says = (
        f"the lossy form runs at {median(ratios):.2f} times the measured one's speed on this machine "
        f"(median of {_PAIRS} pairs: {shown}; too few for an interval)"
    )
    return {"ratio": median(ratios), "ratios": ratios, "says": says}


def _run(task: TrialTask, config: TrialConfig, options: LossyOptions) -> Measurement:
    command = [
        *MODULE,
        "shardtune.workers",
        "run-trial",
        "-",
        "--json",
        "--work-dir",
        str(options.state_dir / "worker"),
    ]
    text = task.model_copy(update={"config": config}).model_dump_json()
    done = subprocess.run([*command, *options.worker_options], input=text, capture_output=True, text=True, check=False)
    try:
        return Measurement.model_validate_json(done.stdout)
    except ValidationError:
        tail = [f"  {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-8:]]
        raise PlatformFailure(f"{config.describe()} could not be measured again:", *tail) from None
