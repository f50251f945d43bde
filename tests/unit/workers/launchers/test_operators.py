"""The build of DeepSpeed's C++ operators: what it says, and what it leaves."""

import logging
import os
import sys
from pathlib import Path

from shardtune.workers.launchers import operators

READS_THE_LINE = "import pathlib, sys; print(pathlib.Path(sys.argv[1], 'doing.txt').read_text())"


def build(tmp_path, *command: str, give_up=lambda: False) -> None:
    operators.build(os.environ, "test-mark", tmp_path, give_up, (sys.executable, *command))


def test_while_it_builds_a_line_says_what_and_how_long(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    build(tmp_path, "-c", READS_THE_LINE, str(tmp_path))
    stated = "building DeepSpeed's CPU Adam for optimizer offload: one to three minutes"
    assert stated in (tmp_path / "operators.log").read_text(), "seen by whoever looks meanwhile"
    assert stated in caplog.text and "built in" in caplog.text
    assert not (tmp_path / "doing.txt").exists()


def test_a_build_that_fails_says_which_trials_will_and_why(tmp_path, caplog):
    build(tmp_path, "-c", "import sys; sys.exit('install g++')")
    assert "trials that offload the optimizer will fail: install g++" in caplog.text
    assert not (tmp_path / "doing.txt").exists()


def test_a_worker_that_ends_takes_the_builder_along(tmp_path, caplog):
    begun = tmp_path / "pid"
    write = f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    build(tmp_path, "-c", write, give_up=lambda: begun.exists() and begun.read_text() != "")
    assert not Path(f"/proc/{begun.read_text()}").exists()
    assert "will fail" not in caplog.text
