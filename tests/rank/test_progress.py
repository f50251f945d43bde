"""What a rank says of itself while one thing takes long."""

import time
from pathlib import Path

import pytest

from shardtune.api_schemas.measurements import Progress
from shardtune.workers.rank import trial_dir


def test_a_long_build_or_compilation_is_no_standstill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    progress = trial_dir.ProgressFile(tmp_path, rank=0)
    stamps = set()
    with progress.ticking(Progress(phase="building")):
        while len(stamps) < 3:
            stamps.add((tmp_path / "progress.json").stat().st_mtime_ns)
            time.sleep(0.005)
    assert Progress.model_validate_json((tmp_path / "progress.json").read_text()).phase == "building"
