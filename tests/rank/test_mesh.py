"""Device that a rank's process group is bound to."""

from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize("is_launched", [False, True], ids=["by the worker", "by a launcher"])
@pytest.mark.parametrize(("ranks", "device"), [(2, torch.device("cuda", 0)), (1, None)])
def test_a_rank_joins_with_that_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, device: torch.device | None, is_launched: bool
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda _, **options: calls.append(options))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if is_launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    mesh.join(RankContext(0, 0, ranks, ranks, of_kind("cuda", 0)), tmp_path)
    assert [options["device_id"] for options in calls] == [device]
