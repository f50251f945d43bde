"""The peak of a CPU rank, to the byte."""

from pathlib import Path

import pytest
import torch

from shardtune.api_schemas.base import GIB
from shardtune.workers.rank.device import CpuDevice
from shardtune.workers.rank.measure import memory
from tests.support.processes import preloaded_forks

pytestmark = pytest.mark.ranks


def train(folder: Path) -> None:
    """Forward and backward of a layer of 256 KiB, then 1 MiB that is freed: the peak."""
    meter = memory.start_meter(CpuDevice())
    layer = torch.nn.Linear(256, 256, bias=False)
    layer(torch.ones(1, 256)).sum().backward()
    freed = torch.empty(1 << 20, dtype=torch.uint8)
    del freed
    torch.empty(1 << 10, dtype=torch.uint8)
    peak = meter.end_of_profiled_steps()
    assert peak is not None and meter.result().peak_allocated_gib == peak
    (folder / "peak").write_text(str(peak * GIB))


def test_the_peak_is_what_was_in_use_at_once_operators_and_their_gradients_included(tmp_path: Path) -> None:
    preloaded_forks.fork(train, tmp_path, output=tmp_path / "log").join()
    weights = gradients = 256 * 256 * 4
    assert (tmp_path / "peak").exists(), (tmp_path / "log").read_text()
    in_use = float((tmp_path / "peak").read_text()) - weights - gradients - (1 << 20)
    assert 0 <= in_use <= 4 << 10, "inputs and outputs of the layer"
