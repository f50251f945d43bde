"""A resume check is two launches over one folder; what its checkpoint took on the disk is given back however it ends."""

import pytest

from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ResumeTask
from shardtune.api_schemas.trials.resume_check import ResumeMeasurement
from shardtune.workers.agent.attempt import Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.trial_dir import TrialDir, prune


@pytest.fixture
def run(tmp_path, task, fingerprint: Fingerprint, warm):
    """Run a restart task with ranks that act as told; what it came to and its folder."""

    def run_once(*acts, interrupted=lambda: None, limits=RunLimits(20, 20)):
        launcher = warm(*acts)
        launcher.prepare(lambda: False)
        place = Workplace(tmp_path / "work", launcher, fingerprint, ranks=2, peak_flops=None, min_free_gib=0)
        restart = ResumeTask(trial=task)
        directory = TrialDir.create(place.work_dir, "run-1", restart, fingerprint, 0)
        attempted = run_attempt(place, restart, lambda: directory, limits, interrupted)
        assert not (directory.path / "checkpoint").exists()
        return attempted, directory

    return run_once


def test_the_second_launch_finds_the_checkpoint_and_both_are_joined(run):
    attempted, directory = run("resume_check", "resume_check")
    measured = attempted.result
    assert isinstance(measured, ResumeMeasurement), measured
    assert measured.saved_at_step == 2 and len(measured.losses) == 4
    assert (measured.save_s, measured.load_s) == (1.5, 2.5), "the slowest rank's"
    assert (measured.checkpoint_files, measured.ranks) == (3, 2)
    assert measured.writing_ranks == 1, "two bytes are no part of a checkpoint"
    assert measured.elapsed_s == attempted.elapsed_s and attempted.gpu_seconds == 2 * attempted.elapsed_s
    assert directory.first_report(0) is not None and directory.succeeded


def test_a_first_life_that_fails_has_no_second(run):
    attempted, directory = run("save_and_oom", "save_and_oom")
    assert isinstance(attempted.result, Failure) and attempted.result.kind is FailureKind.OOM
    assert directory.first_report(0) is None


def test_a_failure_after_loading_is_the_runs(run):
    attempted, _ = run("crash_in_second_life", "resume_check")
    assert isinstance(attempted.result, Failure) and attempted.result.kind is FailureKind.CRASH


def test_ended_in_the_middle_nothing_is_left(run):
    requested = iter([None, None])
    attempted, _ = run("save_and_hang", "resume_check", interrupted=lambda: next(requested, "the lease is lost"))
    assert attempted is None


def test_both_lives_share_one_deadline(run):
    attempted, _ = run("save_and_hang", "resume_check", limits=RunLimits(1.0, 20))
    assert isinstance(attempted.result, Failure) and attempted.result.kind is FailureKind.DEADLINE


def test_what_a_killed_agent_left_of_a_checkpoint_goes_with_the_next_run(tmp_path, directory):
    (directory.path / "checkpoint").mkdir()
    (directory.path / "checkpoint" / "large").touch()
    prune(directory.path.parent, 5, 5)
    assert directory.path.exists() and not (directory.path / "checkpoint").exists()
