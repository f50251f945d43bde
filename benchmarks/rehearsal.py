"""Rehearse layouts of a 70B model at 512 ranks, and compare their peak with the predictor: `python -m
benchmarks.rehearsal [--layout NAME] [--json]`.

One process at a time, about a minute of a core for each layout and two for pipelines. Planted misfits must be rejected
with the field at fault. Needs the extra `worker`.
"""

import argparse
import json
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from shardtune.api_schemas.trials.rehearsals import Rehearsal
from shardtune.service.cli.commands.target.rehearse import subject_of
from shardtune.service.cli.rehearse import processes

_MODEL, _TARGET = "llama-2-70b", "64x8xh100"
_TENSOR = {"kind": "fsdp2", "dp_shard": 64, "tensor_parallel": 8}
_PIPELINE = {"kind": "fsdp2", "dp_shard": 8, "tensor_parallel": 8, "pipeline_parallel": 8}
_HYBRID = {"kind": "fsdp2", "dp_shard": 8, "dp_replicate": 64}


@dataclass(frozen=True)
class Layout:
    """Layout to rehearse."""

    name: str
    strategy: dict[str, Any]
    checkpointing: str = "full"
    global_batch: int = 512
    rejected: str | None = None
    """Field that must be at fault; None: the layout must build."""


LAYOUTS = (
    Layout("FSDP2", {"kind": "fsdp2", "dp_shard": 512}),
    Layout("FSDP2, none", {"kind": "fsdp2", "dp_shard": 512}, "none"),
    Layout("HSDP 64 x 8", _HYBRID),
    Layout("HSDP 64 x 8, none", _HYBRID, "none"),
    Layout("TP 8 x FSDP2 64", _TENSOR),
    Layout("TP 8 x FSDP2 64, none", _TENSOR, "none"),
    Layout("PP 8 x TP 8 x FSDP2 8", _PIPELINE, global_batch=128),
    Layout("PP 8 x TP 8 x FSDP2 8, none", _PIPELINE, "none", global_batch=128),
    Layout("FSDP1", {"kind": "fsdp1", "dp_shard": 512}),
    Layout("heads in 16 parts", {"kind": "fsdp2", "dp_shard": 32, "tensor_parallel": 16}, rejected="tensor_parallel"),
    Layout("80 blocks in 7 stages", {"kind": "fsdp2", "dp_shard": 64, "pipeline_parallel": 7}, rejected="pipeline_parallel"),
    Layout("80 blocks in 128 stages", {"kind": "fsdp2", "dp_shard": 4, "pipeline_parallel": 128}, rejected="pipeline_parallel"),
    Layout("global batch of 500", {"kind": "fsdp2", "dp_shard": 512}, global_batch=500, rejected="global_batch"),
    Layout("shard groups of 48", {"kind": "fsdp2", "dp_shard": 48, "dp_replicate": 10}, rejected="dp_replicate × dp_shard"),
    Layout("DDP", {"kind": "ddp"}, rejected="backend"),
    Layout("ZeRO-3", {"kind": "zero", "stage": 3}, rejected="backend"),
)  # fmt: skip


def rehearsed(layout: Layout) -> dict[str, Any]:
    """Row of a layout: what was seen and predicted, or why it was rejected."""
    config = {"strategy": layout.strategy, "activation_checkpointing": layout.checkpointing}
    subject = subject_of(
        _MODEL, _TARGET, json.dumps(config), {"global_batch": layout.global_batch, "sequence_length": 4096}
    )
    # Layouts that do not fit into 80 GB are compared with the prediction, too.
    return {"layout": layout.name, **_row(processes.rehearse(subject.trial, subject.predicted_gib), layout)}


def _row(rehearsal: Rehearsal, layout: Layout) -> dict[str, Any]:
    if rehearsal.problem is not None:
        return {
            "as_planted": rehearsal.problem.field == layout.rejected,
            "code": rehearsal.problem.code,
            "field": rehearsal.problem.field,
            "message": rehearsal.problem.message,
        }
    assert rehearsal.allocated_gib is not None and rehearsal.predicted_gib is not None
    return {
        "as_planted": layout.rejected is None,
        "allocated_gib": round(rehearsal.allocated_gib, 2),
        "predicted_gib": round(rehearsal.predicted_gib, 2),
        "prediction_error": round(rehearsal.predicted_gib / rehearsal.allocated_gib - 1, 4),
        "process_groups": rehearsal.process_groups,
        "set_up_s": rehearsal.set_up_s,
        "cpu_s": [one.cpu_s for one in rehearsal.seen],
        "peak_rss_mib": max(one.peak_rss_mib for one in rehearsal.seen),
        "parts_gib": [
            {"rank": one.rank, "blocks": one.blocks, "peak": round(one.peak_bytes / (1 << 30), 3)}
            | {name: round(size / (1 << 30), 3) for name, size in one.parts.items()}
            for one in rehearsal.seen
        ],
    }


def main() -> int:
    """Command line; the exit code is 1 where a layout did not build, or a misfit was not rejected for its field."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal", description=__doc__)
    parser.add_argument("--layout", default="", help="only layouts whose name contains this")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a line for each layout")
    options = parser.parse_args()
    rows = []
    for layout in LAYOUTS:
        if options.layout not in layout.name:
            continue
        rows.append(rehearsed(layout))
        if not options.json:
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        machine = {"machine": platform.machine(), "torch": version("torch"), "transformers": version("transformers")}
        print(json.dumps({"model": _MODEL, "target": _TARGET, **machine, "layouts": rows}))
    return 0 if all(row["as_planted"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
