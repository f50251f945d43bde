"""Write a configuration for `shardtune export`, check it with its consumer, and measure the speed lost in conversion."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from shardtune.api_schemas import formatting
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.exports import Export
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.measurements import Measurement
from shardtune.service.cli.errors import PlatformFailure
from shardtune.service.cli.processes import MODULE
from shardtune.service.cli.write_files import reporting_here, runnable_here, write_files

_CHECK_S = 180.0
_PAIRS = 3


@dataclass(frozen=True)
class LossyOptions:
    """Options of the runs that measure an export's lossy form. The lossy form is the configuration as the program that
    reads the exported files runs it, without the settings that their format cannot express."""

    state_dir: Path
    worker_options: Sequence[str] = ()


def write_and_check(
    export: Export, out: Path, lossy: LossyOptions | None, local_state: Path | None = None
) -> dict[str, Any]:
    """Write an export's files, check them, and return the object that `--json` prints.

    `local_state`: state directory of the study, if this machine measured the configuration. If given, the launch
    script may use this Python interpreter, and a job that confirms the answer on its target cluster may report to the
    study.

    Raises:
        PlatformFailure: a run that measures the lossy form failed.
    """
    files = export.files if local_state is None else reporting_here(runnable_here(export.files), local_state)
    answer: dict[str, Any] = {
        "format": export.format,
        "exports": write_files(out, files),
        "release": export.release,
        "lossy": list(export.lossy),
    }
    if export.format != "standard":
        answer["check"] = _check_with_consumer(export, out)
    if lossy is not None:
        answer["lossy_measured"] = _measure_lossy(export, out, lossy)
    return answer


def as_text(answer: dict[str, Any]) -> str:
    """Format the object that `write_and_check` returned as text for a person."""
    lines = list(answer["exports"])
    if answer["release"] is not None:
        lines.append(f"written for {answer['release']}")
    lines += [f"lossy: {line}" for line in answer["lossy"]]
    if (check := answer.get("check")) is not None:
        lines.append(f"{'checked' if check['checked'] else 'not checked'}: {check['says']}")
    measured = answer.get("lossy_measured")
    if measured is not None:
        lines.append(measured["says"])
    return "\n".join(lines)


def _check_with_consumer(export: Export, out: Path) -> dict[str, Any]:
    """Check the exported files by reading them with the program that they are for, such as TRL, if it is installed."""
    # A process of its own: the consumers import torch, and the worker's package may not be installed here at all.
    command = [*MODULE, "shardtune.workers.rank.check_export", export.format, str(out)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_CHECK_S, check=False)
    except subprocess.TimeoutExpired:
        return {"checked": False, "says": f"the consumer did not answer within {_CHECK_S:.0f} s"}
    try:
        # The last line: DeepSpeed logs to stdout on import.
        answer: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (process.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return {"checked": False, "says": f"the consumer could not be run here: {last}"}
    return answer


def _measure_lossy(export: Export, out: Path, options: LossyOptions) -> dict[str, Any]:
    """Compare the speed of a configuration with that of its lossy form in paired runs on this machine. The lossy form
    is the configuration as the program that reads the exported files would run it."""
    if export.lossy_config is None:
        return {
            "ratio": None,
            "says": "the consumer runs the same knobs, so there is nothing to measure",
        }
    task = TrialTask.model_validate_json((out / "config.json").read_text())
    ratios = []
    for pair in range(_PAIRS):
        order = [task.config, export.lossy_config]
        speeds = {}
        # The order alternates, so that a machine that slows down during a pair favours neither.
        for config in order if pair % 2 == 0 else order[::-1]:
            speeds[config] = _run_trial(task, config, options).tokens_per_s_per_gpu
            sys.stderr.write(f"{config.describe()}: {formatting.rate(speeds[config])} tokens/s/GPU\n")
        ratios.append(speeds[export.lossy_config] / speeds[task.config])
    shown = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    says = (
        f"the lossy form runs at {median(ratios):.2f} times the speed of the original on this machine "
        f"(median of {_PAIRS} pairs: {shown}; too few for an interval)"
    )
    return {"ratio": median(ratios), "ratios": ratios, "says": says}


def _run_trial(task: TrialTask, config: TrialConfig, options: LossyOptions) -> Measurement:
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
    process = subprocess.run(
        [*command, *options.worker_options], input=text, capture_output=True, text=True, check=False
    )
    try:
        return Measurement.model_validate_json(process.stdout)
    except ValidationError:
        tail = [f"  {line}" for line in (process.stdout + process.stderr).strip().splitlines()[-8:]]
        raise PlatformFailure(f"{config.describe()} could not be measured:", *tail) from None
