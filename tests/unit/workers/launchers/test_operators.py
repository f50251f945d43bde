"""The build of DeepSpeed's C++ operators: what it says, and what it leaves."""

import logging
import os
import sys
from pathlib import Path

import pytest

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.trials.leases import ModelSummaryTask, RehearsalTask, ResumeTask, TargetRehearsalTask
from shardtune.workers.launchers import operators
from tests.support.workers.worker_fakes import make_task

READS_THE_LINE = "import pathlib, sys; print(pathlib.Path(sys.argv[1], 'doing.txt').read_text())"


def build(tmp_path, *command: str, give_up=lambda: False) -> str | None:
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": "/built/here"}
    return operators.build(environment, "test-mark", tmp_path, give_up, (sys.executable, *command))


def test_while_it_builds_a_line_says_what_and_how_long(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert build(tmp_path, "-c", READS_THE_LINE, str(tmp_path)) is None
    stated = "building DeepSpeed's CPU Adam for optimizer offload: one to three minutes"
    words = (tmp_path / "operators.log").read_text()
    assert stated in words and "in /built/here" in words, "seen by whoever looks meanwhile"
    assert stated in caplog.text and "built in" in caplog.text
    assert not (tmp_path / "doing.txt").exists()


def test_a_build_that_fails_says_which_trials_will_and_why(tmp_path, caplog):
    reason = build(tmp_path, "-c", "import sys; sys.exit('install g++')")
    assert reason == f"install g++ (see {tmp_path / 'operators.log'})"
    assert "trials that offload the optimizer will fail: install g++" in caplog.text
    assert not (tmp_path / "doing.txt").exists()


def test_a_worker_that_ends_takes_the_builder_along(tmp_path, caplog):
    begun = tmp_path / "pid"
    write = f"import os, time; open({str(begun)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    build(tmp_path, "-c", write, give_up=lambda: begun.exists() and begun.read_text() != "")
    assert not Path(f"/proc/{begun.read_text()}").exists()
    assert "will fail" not in caplog.text


PLAIN = make_task()
OFFLOADING = make_task(
    config=TrialConfig.model_validate(
        {"strategy": {"kind": "zero", "stage": 3, "offload_optimizer": {"device": "cpu"}}, "micro_batch": 1}
    )
)


def test_operators_are_built_once_before_the_first_task_that_needs_them():
    builds = []
    awaited = operators.OperatorBuild(lambda give_up: builds.append("built"))
    summary = ModelSummaryTask(model=PLAIN.model, workload=PLAIN.workload)
    rehearsal = TargetRehearsalTask(trial=OFFLOADING, parts=(RehearsalTask(trial=OFFLOADING),))
    for task in (PLAIN, ResumeTask(trial=PLAIN), summary, rehearsal):
        awaited.run_before(task, lambda: False)
    assert builds == []
    for task in (ResumeTask(trial=OFFLOADING), OFFLOADING):
        awaited.run_before(task, lambda: False)
    assert builds == ["built"]


def test_a_build_that_was_interrupted_is_begun_again():
    builds = []
    awaited = operators.OperatorBuild(lambda give_up: builds.append(give_up()))
    awaited.run_before(OFFLOADING, lambda: True)
    awaited.run_before(OFFLOADING, lambda: False)
    awaited.run_before(OFFLOADING, lambda: False)
    assert builds == [True, False]


def test_a_build_that_cannot_start_is_logged_and_not_repeated(caplog):
    builds = []

    def build(give_up):
        builds.append(give_up())
        raise OSError(28, "No space left on device")

    awaited = operators.OperatorBuild(build)
    awaited.run_before(OFFLOADING, lambda: False)
    awaited.run_before(OFFLOADING, lambda: False)
    assert builds == [False]
    assert "was not built: [Errno 28] No space left on device" in caplog.text


def test_a_task_does_not_repeat_a_build_that_failed_here():
    awaited = operators.OperatorBuild(lambda give_up: "install g++")
    awaited.require_built(OFFLOADING)
    awaited.run_before(OFFLOADING, lambda: False)
    awaited.require_built(PLAIN)
    with pytest.raises(
        ValueError, match=r"offload_optimizer \(cpu\) needs .* could not build: install g\+\+; mend that"
    ):
        awaited.require_built(OFFLOADING)


def test_a_build_that_was_interrupted_has_not_failed():
    awaited = operators.OperatorBuild(lambda give_up: "ended by SIGTERM")
    awaited.run_before(OFFLOADING, lambda: True)
    awaited.require_built(OFFLOADING)
