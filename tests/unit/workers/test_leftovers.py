"""Folders that killed measurements and earlier processors left in a work directory go, when nobody can use them."""

import os
import time
from pathlib import Path

import pytest

from shardtune.workers import leftovers

NOW = time.time()
HOUR, DAY = 3600.0, 86400.0


def folder(path: Path, unused_s: float, entry_unused_s: float | None = None) -> None:
    """Make a folder with a file, both last changed so many seconds ago."""
    path.mkdir()
    (path / "entry").touch()
    entry_s = unused_s if entry_unused_s is None else entry_unused_s
    os.utime(path / "entry", (NOW - entry_s, NOW - entry_s))
    os.utime(path, (NOW - unused_s, NOW - unused_s))


def test_old_leftovers_are_removed_and_what_may_be_in_use_stays(tmp_path: Path) -> None:
    folder(tmp_path / "hardware-killed", 2 * HOUR)
    folder(tmp_path / "hardware-running", HOUR / 6)
    folder(tmp_path / "torchinductor-old", 100 * DAY)
    folder(tmp_path / "torchinductor-compiling", 100 * DAY, entry_unused_s=DAY)
    folder(tmp_path / "trial-1", 1000 * DAY)
    (tmp_path / "hardware-1f-2.json").write_text("{}")
    os.utime(tmp_path / "hardware-1f-2.json", (0, 0))
    folder(tmp_path / "elsewhere", 1000 * DAY)
    (tmp_path / "torchinductor-link").symlink_to(tmp_path / "elsewhere")
    leftovers.remove(tmp_path)
    kept = {"hardware-running", "torchinductor-compiling", "trial-1", "hardware-1f-2.json", "torchinductor-link"}
    assert {path.name for path in tmp_path.iterdir()} == kept | {"elsewhere"}


def test_a_folder_that_is_marked_as_used_stays(tmp_path: Path) -> None:
    folder(tmp_path / "torchinductor-own", 0)
    os.utime(tmp_path / "torchinductor-own" / "entry", (0, 0))
    leftovers.mark_used(tmp_path / "torchinductor-own")
    leftovers.mark_used(tmp_path / "torchinductor-new")
    leftovers.remove(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "torchinductor-theirs", 100 * DAY)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    leftovers.remove(tmp_path)
    assert (tmp_path / "torchinductor-theirs" / "entry").exists()
