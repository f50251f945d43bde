"""Bandwidths that ranks measure: within each host, across hosts with one rank of each, and over all."""

import os
from pathlib import Path

import pytest

from shardtune.api_schemas.machines.hardware import MeasuredHardware
from shardtune.workers.rank.measure import hardware
from tests.support.processes import preloaded_forks

pytestmark = pytest.mark.ranks

FEW = {"_SIZES": {"cpu": (1 << 12, 1 << 14)}, "_ENOUGH_S": 0.0, "_MATRIX": {"cpu": 64}, "_COPIED": {"cpu": 1 << 16}}
"""A look at each instead of a measurement."""


def _as_on_hosts_of(ranks: int, folder: Path) -> None:
    for name, value in FEW.items():
        setattr(hardware, name, value)
    local_rank = int(os.environ["RANK"]) % ranks
    os.environ |= {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"}
    hardware.run(folder)


@pytest.mark.parametrize(
    ("per_host", "groups"), [(2, [(2, 1), (2, 2), (4, 2)]), (4, [(4, 1)]), (1, [(4, 4)])], ids=["2x2", "1x4", "4x1"]
)
def test_groups_follow_the_hosts(tmp_path: Path, per_host: int, groups: list[tuple[int, int]]) -> None:
    preloaded_forks.ranks(_as_on_hosts_of, per_host, tmp_path, logs=tmp_path, count=4)
    collectives = MeasuredHardware.model_validate_json((tmp_path / "hardware.json").read_bytes()).collectives
    assert list(dict.fromkeys((collective.ranks, collective.nodes) for collective in collectives)) == groups
    assert len(collectives) == 3 * 2 * len(groups)
