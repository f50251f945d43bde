"""Device that a rank's process group is bound to."""

import pytest
import torch

from shardtune.workers.rank import mesh
from shardtune.workers.rank.device import DeviceKind, of_kind
from shardtune.workers.rank.rank_context import RankContext


@pytest.mark.parametrize(
    ("kind", "ranks", "device"),
    [("cuda", 2, torch.device("cuda", 0)), ("cuda", 1, None), ("cpu", 2, None), ("cpu", 1, None)],
)
def test_only_several_gpus_bind_their_process_group_to_a_device(
    kind: DeviceKind, ranks: int, device: torch.device | None
) -> None:
    """NCCL splits the communicator of a bound group, and failed to split one of a single rank."""
    context = RankContext(0, 0, ranks, ranks, of_kind(kind, 0))
    assert mesh.bound_device(context) == device
