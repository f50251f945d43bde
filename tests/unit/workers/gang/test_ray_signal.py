"""A worker on Ray's hosts keeps its handler of SIGTERM, by which it ends its ranks in order and hands its run back."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="shardtune[ray] is not installed")

from shardtune.workers.gang import ray_hosts
from shardtune.workers.interrupt import Interrupt


def test_joining_a_cluster_leaves_the_worker_its_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def init(**_options: Any) -> None:
        # As ray.init does: "This method overwrite sigterm handler of the driver process".
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    monkeypatch.setattr("ray.init", init)
    for name in ("require_token", "require_answer", "require_closed", "_bundle", "_group"):
        monkeypatch.setattr(ray_hosts, name, lambda *_: {})
    monkeypatch.setattr("ray.get_runtime_context", lambda: type("Context", (), {"gcs_address": ""}))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        interrupt = Interrupt().install()
        ray_hosts.RayHosts("head:6379", 2, None, tmp_path, 1.0)
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.reason == "the worker was stopped by SIGTERM"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
