"""Batches that a trace holds where samples have several lengths: whole cycles, and a note that says so."""

import pytest

from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TraceTask
from shardtune.tuner.diagnosis import explain
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial
from tests.support.service.simulated_worker import diagnosis
from tests.support.values import tuner_inputs
from tests.support.workers.worker_fakes import make_task

LENGTHS = SampleLengths(lengths=((8, 60), (64, 30), (128, 10)))


def workload(global_batch, data=LENGTHS):
    return Workload(sequence_length=128, global_batch=global_batch, data=data)


@pytest.mark.parametrize(("global_batch", "cycle", "steps"), [(16, 4, 4), (22, 3, 3), (32, 2, 4), (64, 1, 3)])
def test_a_trace_holds_whole_cycles_of_a_studys_batches(global_batch, cycle, steps):
    trained = workload(global_batch)
    assert trained.steps_per_cycle == cycle
    assert TraceTask.of(make_task(workload=trained)).steps == steps


def test_a_trace_of_samples_of_one_length_holds_three_steps():
    assert TraceTask.of(make_task()).steps == 3


def notes_of(trained, steps):
    task, sent = make_task(workload=trained), diagnosis()
    searched = tuner_inputs.space_of(task.cluster, None, trained)
    traced = TracedTrial(task.config, trained, task.cluster, searched, lambda _: True)
    recorded = sent.recorded.model_copy(update={"steps": steps})
    return explain.explain(sent.model_copy(update={"recorded": recorded}), traced, None).notes


def test_the_explanation_says_which_batches_were_traced():
    (note,) = [note for note in notes_of(workload(16), 8) if note.startswith("data")]
    assert "the 4 batches of 8 to 128 tokens a sample" in note and "2 times" in note
    assert "in a step of the longest samples (128 tokens)" in note


def test_a_trace_of_part_of_the_cycle_says_that_its_means_are_those_of_its_steps():
    (note,) = [note for note in notes_of(workload(16), 3) if note.startswith("data")]
    assert "3 steps of the 4 batches" in note and "no whole number of times" in note


def test_nothing_is_said_of_samples_of_one_length():
    assert not [note for note in notes_of(workload(16, None), 3) if note.startswith("data")]
