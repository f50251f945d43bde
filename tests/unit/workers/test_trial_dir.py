"""The trial directory: the task goes in, leftovers do not, and old ones go away."""

import json
import os

import pytest

from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers.clock import now_s
from shardtune.workers.trial_dir import DiskFull, TrialDir, prune, tail


def test_the_rank_reads_the_task_the_agent_wrote(directory, task, fingerprint):
    assert TrialTask.model_validate_json((directory.path / "task.json").read_text()) == task
    assert json.loads((directory.path / "versions.json").read_text()) == fingerprint.model_dump(mode="json")


def test_the_same_attempt_again_starts_empty(directory, task, fingerprint):
    (directory.path / "rank_0.json").write_text("{}")
    again = TrialDir.create(directory.path.parent, directory.path.name, task, fingerprint, 0)
    assert again == directory
    assert not (directory.path / "rank_0.json").exists()


def test_too_little_disk_is_rejected_before_anything_is_made(tmp_path, task, fingerprint):
    with pytest.raises(DiskFull, match="min_free_gib"):
        TrialDir.create(tmp_path / "work", "run-1", task, fingerprint, min_free_gib=1e9)
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("name", ["../other", "a/b", "..", "."])
def test_a_name_that_leads_elsewhere_removes_nothing(tmp_path, task, fingerprint, name):
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    with pytest.raises(ValueError, match="no folder's"):
        TrialDir.create(work, name, task, fingerprint, min_free_gib=0)
    assert work.is_dir() and other.is_dir()


def test_progress_appears_with_a_new_stamp_each_time(directory):
    assert (directory.progress(), directory.progress_stamp()) == (None, None)
    path = directory.path / "progress.json"
    path.write_text('{"phase": "measuring", "step": 3}')
    os.utime(path, ns=(1, 1))
    assert (directory.progress().step, directory.progress_stamp()) == (3, 1)


def test_tail_is_the_end_of_the_log(directory):
    log = directory.path / "rank_0.log"
    log.write_text("x" * 50_000 + "the end")
    assert tail(log, 7) == "the end"
    assert directory.log_tail(1) is None


def test_pruning_keeps_the_newest_of_each_kind_and_strangers(tmp_path, task, fingerprint):
    for number in range(6):
        create = TrialDir.create(tmp_path, f"run-{number}", task, fingerprint, 0)
        if number % 2:
            create.write_outcome("complete")
        os.utime(create.path, (number, number))
    (tmp_path / "notes").mkdir()
    prune(tmp_path, keep_succeeded=1, keep_failed=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "run-2", "run-4", "run-5"]


@pytest.mark.parametrize(
    ("left_s", "end", "is_in_use"), [(20, None, True), (-1, None, False), (1e6, None, False), (20, "complete", False)]
)
def test_pruning_leaves_what_ranks_of_another_worker_use(tmp_path, task, fingerprint, left_s, end, is_in_use):
    """Workers with different GPUs may share a work directory, and one would end the other's resume check."""
    directory = TrialDir.create(tmp_path, "run-1", task, fingerprint, 0)
    (directory.path / "checkpoint").mkdir()
    directory.write_deadline(now_s() + left_s)
    if end is not None:
        directory.write_outcome(end)
    prune(tmp_path, keep_succeeded=0, keep_failed=0)
    assert (directory.path / "checkpoint").is_dir() is is_in_use
    assert directory.path.is_dir() is is_in_use


def test_an_outcome_that_cannot_be_written_loses_no_result(directory, caplog):
    (directory.path / "outcome.json").mkdir()
    directory.write_outcome("complete")
    assert "could not be recorded" in caplog.text and not directory.succeeded
