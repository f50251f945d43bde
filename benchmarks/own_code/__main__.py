"""Compare the traced peak of own code's steps with the measured peak of the same steps on a CPU rank.

`python -m benchmarks.own_code [--script NAME] [--json]`; a script takes some seconds of one core.
"""

import argparse
import gc
import json
import platform
from dataclasses import asdict, dataclass

import torch
import transformers

from benchmarks.own_code.scripts import SCRIPTS, OwnScript
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.workers.rank.measure.memory import Recording
from shardtune.workers.rank.model import build
from shardtune.workers.rank.own_code import failures, trace_step

_MEASURED = (2, 6)
"""Numbers of samples of the measured micro batches; the second was not traced."""
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """Traced and measured peak of one step, in MiB beside the weights."""

    script: str
    samples: int
    traced_mib: float | None
    measured_mib: float
    error: float | None
    """Relative difference of the traced peak."""
    failure: str | None = None
    """Code of the reason why the step was not traced."""


def workload(script: OwnScript) -> Workload:
    """Workload of a script's step."""
    return Workload(sequence_length=script.length, global_batch=16, precision=PRECISIONS["fp32"])


def measured_peak(script: OwnScript, samples: int) -> int:
    """Bytes at the peak of a first forward and backward pass, beside weights, as the memory meter of a CPU rank counts."""
    model = script.build_model()
    build.materialize(model, torch.device("cpu"), torch.float32, 0, torch.float32)
    _step(script, model, samples)
    model.zero_grad(set_to_none=True)
    gc.collect()
    recording = Recording()
    _step(script, model, samples)
    records = [record.extra_fields for record in recording.stop()]
    before = records[0].total_allocated - records[0].alloc_size
    return int(max(record.total_allocated for record in records) - before)


def _step(script: OwnScript, model: torch.nn.Module, samples: int) -> None:
    batch = script.make_batch(0, range(samples), torch.device("cpu"))
    script.loss(model, batch).backward()  # type: ignore[no-untyped-call]


def compare(script: OwnScript) -> list[Row]:
    """Rows of one script."""
    try:
        trace, failure = trace_step.trace(script, workload(script)), None
    except Exception as error:  # noqa: BLE001 -- a border: scripts that no trace follows are among the cases
        trace, failure = None, failures.failure_of(error)
    rows = []
    for samples in _MEASURED:
        measured = measured_peak(script, samples)
        traced = None if trace is None else trace.peak.at(samples)
        rows.append(
            Row(
                script=script.name,
                samples=samples,
                traced_mib=None if traced is None else traced / MIB,
                measured_mib=measured / MIB,
                error=None if traced is None else traced / measured - 1,
                failure=None if failure is None else failure.code,
            )
        )
    return rows


def main() -> None:
    """Print a row for each script and micro batch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", choices=[script.name for script in SCRIPTS])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chosen = [script for script in SCRIPTS if options.script in (None, script.name)]
    rows = [row for script in chosen for row in compare(script)]
    if options.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__, "machine": platform.machine()}
        print(json.dumps({"versions": versions, "rows": [asdict(row) for row in rows]}, indent=1))
        return
    for row in rows:
        traced = row.failure if row.traced_mib is None else f"{row.traced_mib:8.2f} MiB {row.error:+7.2%}"
        print(f"{row.script:15} {row.samples:2} samples  measured {row.measured_mib:8.2f} MiB  traced {traced}")


if __name__ == "__main__":
    main()
