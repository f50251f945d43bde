"""Analysis of traces in a separate process that ends in any case."""

import pytest

from shardtune.api_schemas.trials.diagnosis import ProfilerRecording
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.workers.agent.analysis import LONGEST_S, diagnose, time_limit_s
from tests.support.processes.command_line import children_with


@pytest.mark.parametrize(("longest_s", "why"), [(60.0, "no-such-folder"), (0.001, "more than 0 s")])
def test_what_cannot_be_analysed_is_a_failure_and_leaves_no_process(tmp_path, longest_s, why):
    traced = ProfilerRecording(
        folder=str(tmp_path / "no-such-folder"), bytes=0, steps=3, step_s=1.0, plain_step_s=1.0, elapsed_s=1.0
    )
    diagnosis = diagnose(traced, longest_s)
    assert isinstance(diagnosis, Failure) and diagnosis.kind is FailureKind.SETUP
    assert why in diagnosis.message
    assert children_with("shardtune.traces") == []


def test_an_analysis_that_must_end_ends_at_once_and_leaves_no_process(tmp_path):
    traced = ProfilerRecording(folder=str(tmp_path), bytes=0, steps=3, step_s=1.0, plain_step_s=1.0, elapsed_s=1.0)
    assert diagnose(traced, give_up=lambda: True) is None
    assert children_with("shardtune.traces") == []


def test_large_traces_have_more_time():
    traced = ProfilerRecording(folder="f", bytes=0, steps=3, step_s=1.0, plain_step_s=1.0, elapsed_s=1.0)
    assert time_limit_s(traced) == LONGEST_S
    assert time_limit_s(traced.model_copy(update={"bytes": 800_000_000})) == LONGEST_S + 800
