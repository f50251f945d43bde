"""Limits of systemd's units that a host's defaults would break."""

from pathlib import Path

SYSTEMD = Path(__file__).parents[2] / "deploy/systemd"


def test_ranks_of_several_hosts_may_lock_the_memory_that_nccl_registers() -> None:
    assert "LimitMEMLOCK=infinity" in (SYSTEMD / "shardtune-ray-node.service").read_text().splitlines()
