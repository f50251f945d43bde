"""Reports of ranks become one result, by reports, exit codes and counters only."""

import json
import os

import pytest

from shardtune.api_schemas.machines.conditions import Conditions, NodeConditions
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.leases import ModelSummaryTask, TraceTask
from shardtune.api_schemas.trials.measurements import Measurement, Memory
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.agent.collect import attempt_outcome
from shardtune.workers.agent.rank_figures import half_width, largest
from shardtune.workers.agent.supervise import RanksEnd
from shardtune.workers.launchers.base import RankExit
from tests.support.workers.worker_fakes import make_task


def write(directory, rank, at_s=1000, **values):
    path = directory.path / f"rank_{rank}.json"
    path.write_text(RankReport(rank=rank, **values).model_dump_json())
    os.utime(path, (at_s, at_s))


def write_complete(directory, rank, windows, **values):
    write(
        directory, rank, status="complete", window_step_times_s=windows, memory=Memory(peak_allocated_gib=1), **values
    )


def write_failed(directory, rank, kind, at_s=1000):
    write(directory, rank, at_s, status="failed", failure=Failure(kind=kind, message=f"{kind} on {rank}"))


def ended(*codes, cause=None, oom_killed=False, order=None):
    exits = [RankExit(rank, code) for rank, code in enumerate(codes) if code is not None]
    exits.sort(key=lambda exit: (order or list(range(len(codes)))).index(exit.rank))
    nodes = (NodeConditions(host="n0", first_rank=0, ranks=max(1, len(codes)), oom_kills=int(oom_killed)),)
    return RanksEnd(
        tuple(exits), cause, "in words", started_at_s=100.0, elapsed_s=5.0, conditions=Conditions(nodes=nodes)
    )


def test_each_window_lasts_as_long_as_its_slowest_rank(directory, task):
    write_complete(directory, 0, (1.0, 2.0, 3.0))
    write_complete(directory, 1, (1.5, 1.0, 2.0))
    result = attempt_outcome(task, directory, ended(0, 0), None)
    assert result.window_step_times_s == (1.5, 2.0, 3.0)
    assert result.step_time_s == 2.0
    assert result.tokens_per_s_per_gpu == 8 * 128 / 2.0 / 2
    assert result.gradient_accumulation == 2
    assert result.mfu is None


def test_mfu_counts_backward_twice_and_no_recomputation(directory):
    task = make_task(forward_flops_per_token=1e9)
    for rank in range(2):
        write_complete(directory, rank, (0.5, 0.5))
    result = attempt_outcome(task, directory, ended(0, 0), peak_flops=1e13)
    assert result.mfu == pytest.approx(3 * 1e9 * 1024 / 1e13)


def test_mfu_of_fp32_is_unknown_because_the_known_peak_is_bf16s(directory):
    workload = Workload(sequence_length=128, global_batch=8, precision="fp32")
    for rank in range(2):
        write_complete(directory, rank, (0.5, 0.5))
    task = make_task(forward_flops_per_token=1e9, workload=workload)
    assert attempt_outcome(task, directory, ended(0, 0), peak_flops=1e13).mfu is None


def test_half_width_is_students():
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)
    assert half_width([2.0] * 40) == 0


def test_memory_is_the_maximum_over_ranks_and_unmeasured_stays_none():
    joined = largest([Memory(peak_allocated_gib=1.0, allocator_retries=0), Memory(peak_allocated_gib=2.0)])
    assert joined == Memory(peak_allocated_gib=2.0, allocator_retries=0)


def test_more_memory_than_declared_is_over_limit_with_its_figure(directory):
    for rank in range(2):
        write_complete(directory, rank, (0.5, 0.5))
    result = attempt_outcome(make_task(memory_limit_gib=0.5), directory, ended(0, 0), None)
    assert (result.kind, result.peak_allocated_gib) == ("over_limit", 1.0)


@pytest.mark.parametrize("kind", ["oom", "device"])
def test_the_rank_that_explains_itself_wins_over_peers_that_only_crashed(directory, task, kind):
    write_failed(directory, 0, "crash", at_s=1000)
    write_failed(directory, 1, kind, at_s=1001)
    result = attempt_outcome(task, directory, ended(1, 1), None)
    assert (result.kind, result.rank) == (kind, 1)


def test_among_crashes_the_first_report_counts(directory, task):
    write_failed(directory, 0, "crash", at_s=1001)
    write_failed(directory, 1, "crash", at_s=1000)
    assert attempt_outcome(task, directory, ended(1, 1), None).rank == 1


@pytest.mark.parametrize(("code", "kind"), [(-9, "rank_lost"), (-11, "rank_lost"), (-6, "crash")])
def test_a_signal_counts_before_a_peers_crash_unless_the_peer_can_cause_it(directory, task, code, kind):
    write_failed(directory, 0, "crash")
    assert attempt_outcome(task, directory, ended(1, code), None).kind == kind


def test_sigkill_is_an_oom_only_when_the_kernel_counted_one(directory, task):
    assert attempt_outcome(task, directory, ended(None, -9, oom_killed=True), None).kind == "oom"
    assert attempt_outcome(task, directory, ended(None, -9), None).kind == "rank_lost"
    assert attempt_outcome(task, directory, ended(None, -11, oom_killed=True), None).kind == "rank_lost"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [("deadline", "deadline"), ("no_progress", "no_progress"), ("host_lost", "rank_lost"), ("node_lost", "node_lost")],
)
def test_our_own_limits_name_themselves(directory, task, cause, kind):
    result = attempt_outcome(task, directory, ended(cause=cause), None)
    assert (result.kind, result.message) == (kind, "in words")


def on_two_hosts(**n1):
    """One rank on each."""
    return Conditions(
        nodes=(NodeConditions(host="n0", first_rank=0, ranks=1), NodeConditions(host="n1", first_rank=1, ranks=1, **n1))
    )


def test_what_the_peers_of_a_lost_node_died_of_is_not_the_runs_end_unless_it_explains_itself(directory, task):
    write_failed(directory, 0, "crash")
    assert attempt_outcome(task, directory, ended(1, None, cause="node_lost"), None).kind == "node_lost"
    write_failed(directory, 0, "oom")
    assert attempt_outcome(task, directory, ended(1, None, cause="node_lost"), None).kind == "oom"


@pytest.mark.parametrize(("rank", "kind"), [(0, "rank_lost"), (1, "oom")])
def test_an_out_of_memory_kill_counts_on_its_own_host(directory, task, rank, kind):
    exits = (RankExit(rank, -9),)
    end = RanksEnd(exits, None, "", started_at_s=100.0, elapsed_s=5.0, conditions=on_two_hosts(oom_kills=1))
    assert attempt_outcome(task, directory, end, None).kind == kind


def test_each_host_has_figures_of_its_own_and_moments_count_from_its_own_launch(directory, task):
    write_complete(directory, 0, (1.0, 1.0), own_step_times_s=(0.9, 0.9), first_forward_s=2.0, steps_ended_s=4.0)
    write_complete(directory, 1, (1.0, 1.0), own_step_times_s=(1.4, 1.4), first_forward_s=2.5, steps_ended_s=4.5)
    end = RanksEnd((RankExit(0, 0), RankExit(1, 0)), None, "", 1e9, elapsed_s=5.0, conditions=on_two_hosts())
    result = attempt_outcome(task, directory, end, None)
    assert [(node.host, node.first_rank, node.step_time_s) for node in result.nodes] == [("n0", 0, 0.9), ("n1", 1, 1.4)]
    assert (result.startup_s, result.teardown_s) == (2.5, 0.5)


def test_a_real_failure_wins_over_the_limit_it_led_to(directory, task):
    write_failed(directory, 0, "illegal")
    assert attempt_outcome(task, directory, ended(1, None, cause="deadline"), None).kind == "illegal"


@pytest.mark.parametrize(("codes", "rank"), [((0, 0), 0), ((0, 7), 1)])
def test_an_end_without_a_report_is_a_crash(directory, task, codes, rank):
    result = attempt_outcome(task, directory, ended(*codes), None)
    assert (result.kind, result.rank, result.exit_code) == ("crash", rank, codes[rank])


def test_a_damaged_report_is_none(directory, task):
    write_complete(directory, 0, (0.5, 0.5))
    (directory.path / "rank_1.json").write_text('{"rank": 1, "stat')
    assert attempt_outcome(task, directory, ended(0, 1), None).rank == 1


def test_a_crash_at_interpreter_shutdown_does_not_spoil_a_complete_run(directory, task):
    for rank in range(2):
        write_complete(directory, rank, (0.5, 0.5))
    assert isinstance(attempt_outcome(task, directory, ended(0, -6), None), Measurement)


def test_profile_tasks_return_their_profile_or_say_why_not(directory, task):
    profiling = ModelSummaryTask(model=task.model, workload=task.workload)
    assert attempt_outcome(profiling, directory, ended(0), None).kind == "crash"
    write_failed(directory, 0, "illegal")
    assert attempt_outcome(profiling, directory, ended(1), None).kind == "illegal"
    (directory.path / "rank_0.json").unlink()
    model_summary = {"parameters": 10, "active_parameters": 10, "blocks": [], "block_class": "B"}
    model_summary |= {"forward_flops_per_token": 1.0, "hidden_size": 1, "vocab_size": 2, "max_positions": None}
    write_text = (directory.path / "model_summary.json").write_text
    write_text(json.dumps(model_summary))
    assert attempt_outcome(profiling, directory, ended(0), None).parameters == 10


def test_the_step_before_a_trace_is_a_mean_over_a_cycle_of_samples_of_several_lengths(directory):
    data = SampleLengths(lengths=((8, 60), (64, 30), (128, 10)))
    traced = TraceTask.of(make_task(workload=Workload(sequence_length=128, global_batch=32, data=data)))
    for rank in range(2):
        times = (9.0, 9.0, 1.0, 3.0 + rank)
        write(directory, rank, status="complete", warmup_step_times_s=times, window_step_times_s=(5.0,))
    (directory.path / "traces").mkdir()
    recorded = attempt_outcome(traced, directory, ended(0, 0), None)
    assert (recorded.steps, recorded.plain_step_s) == (4, 2.5)


def test_traces_on_another_host_are_named_and_end_no_worker(directory):
    """A worker over hosts also takes studies that need one of them, and its agent has no folder of traces."""
    traced = TraceTask.of(make_task(workload=Workload(sequence_length=128, global_batch=32)))
    for rank in range(2):
        write(directory, rank, status="complete", warmup_step_times_s=(1.0,), window_step_times_s=(1.0,))
    failure = attempt_outcome(traced, directory, ended(0, 0), None)
    assert failure.kind == "setup" and "--launcher local" in failure.message
