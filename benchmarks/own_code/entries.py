"""Entry points of the benchmark's scripts, as an installed package offers its training step to a worker."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.own_code.scripts import SCRIPTS, OwnScript
from shardtune.api_schemas.training.workload import Workload


@dataclass(frozen=True)
class ScriptEntry:
    """Training step of one script, with the three functions of an entry point."""

    script: OwnScript

    def build_model(self, _config: dict[str, Any], _workload: Workload) -> nn.Module:
        """Build the model."""
        return self.script.make_model()

    def make_batch(
        self, _config: dict[str, Any], workload: Workload, _step: int, samples: range, _device: torch.device
    ) -> Any:
        """Make a micro batch of samples."""
        return self.script.batch_of(samples, workload.sequence_length)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Loss of a micro batch."""
        return self.script.loss_of(model, batch)


_BY_NAME = {script.name: script for script in SCRIPTS}
NANOGPT, LORA, BERT = (ScriptEntry(_BY_NAME[name]) for name in ("nanogpt", "lora", "bert"))
NAMES = ("nanogpt", "lora", "bert")
"""Scripts whose batches do not depend on how samples are divided over ranks."""


def entry_point(name: str) -> str:
    """Name of a script's entry point."""
    return f"own-code-{name}"


def install(folder: Path) -> None:
    """Write the metadata of a package that offers the scripts; `folder` must be on the path of the ranks."""
    metadata = folder / "own_code_scripts-0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-code-scripts\nVersion: 0.1\n")
    lines = [f"{entry_point(name)} = benchmarks.own_code.entries:{name.upper()}" for name in NAMES]
    (metadata / "entry_points.txt").write_text("\n".join(["[shardtune.models]", *lines, ""]))
