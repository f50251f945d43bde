"""Which ranks and depths a rehearsal runs, and the line through them."""

import pytest

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.strategies import Fsdp2Config, TrialConfig
from shardtune.api_schemas.strategies.ddp import DdpConfig
from shardtune.api_schemas.training.models import preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rehearsals import RehearsalProblem, RehearsedRank
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection import rehearsal


def trial(strategy: Fsdp2Config, global_batch: int = 512, layers: int = 80, **config: object) -> TrialTask:
    model = preset("llama-2-70b")
    return TrialTask(
        model=model.model_copy(update={"config": {**model.config, "num_hidden_layers": layers}}),
        workload=Workload(sequence_length=4096, global_batch=global_batch),
        cluster=catalogue.parse_cluster("64x8xh100"),
        config=TrialConfig.model_validate({"strategy": strategy, **config}),
    )


def seen(rank: int, blocks: int, gib: float) -> RehearsedRank:
    return RehearsedRank(
        rank=rank, blocks=blocks, peak_bytes=round(gib * GIB), parts={}, process_groups=4, set_up_s=1, cpu_s=20,
        peak_rss_mib=500,
    )  # fmt: skip


def planned(task: TrialTask) -> list[tuple[int, int, int]]:
    """Rank, blocks of the model and micro batches of each process."""
    return [(one.rank, rehearsal.layers_of(one.trial.model)[1], one.micro_batches) for one in rehearsal.tasks(task)]


def test_without_stages_the_first_rank_runs_with_four_and_eight_blocks() -> None:
    assert planned(trial(Fsdp2Config(dp_shard=512))) == [(0, 4, 1), (0, 8, 1)]
    assert planned(trial(Fsdp2Config(dp_shard=512), global_batch=4096)) == [(0, 4, 2), (0, 8, 2)]


def test_a_model_of_few_blocks_runs_at_its_own_depth() -> None:
    assert planned(trial(Fsdp2Config(dp_shard=512), layers=8)) == [(0, 8, 1)]


def test_units_and_checkpoints_of_several_blocks_stay_whole() -> None:
    units = Fsdp2Config(dp_shard=512, blocks_per_unit=2)
    assert [blocks for _, blocks, _ in planned(trial(units))] == [8, 16]
    every = trial(Fsdp2Config(dp_shard=512), activation_checkpointing="full", checkpoint_every=3)
    assert [blocks for _, blocks, _ in planned(every)] == [12, 24]


def test_the_first_and_the_last_stage_run_with_the_micro_batches_in_flight() -> None:
    stages = Fsdp2Config(dp_shard=8, tensor_parallel=8, pipeline_parallel=8)
    assert planned(trial(stages, global_batch=128)) == [(0, 32, 9), (0, 64, 9), (448, 32, 9), (448, 64, 9)]


def test_layer_types_are_cut_with_the_blocks() -> None:
    task = trial(Fsdp2Config(dp_shard=512))
    config = {**task.model.config, "layer_types": ["full_attention"] * 80}
    task = task.model_copy(update={"model": task.model.model_copy(update={"config": config})})
    assert [len(one.trial.model.config["layer_types"]) for one in rehearsal.tasks(task)] == [4, 8]  # type: ignore[arg-type]


def test_the_line_leads_to_the_fullest_stage_with_its_own_blocks() -> None:
    # 81 blocks: the first stage has eleven, the last ten.
    task = trial(Fsdp2Config(dp_shard=8, tensor_parallel=8, pipeline_parallel=8), global_batch=128, layers=81)
    runs = [seen(0, 2, 2.0), seen(0, 4, 3.0), seen(448, 2, 4.0), seen(448, 4, 4.5)]
    result = rehearsal.combine(task, runs, None, predicted_gib=6.0)
    assert result.builds and result.extended_from == (2, 4)
    assert result.allocated_gib == pytest.approx(6.5)
    result = rehearsal.combine(task, [seen(0, 2, 2.0), seen(0, 4, 4.0), *runs[2:]], None, predicted_gib=6.0)
    assert result.allocated_gib == pytest.approx(11.0)


def test_a_wrong_prediction_shows() -> None:
    task = trial(Fsdp2Config(dp_shard=512))
    runs = [seen(0, 4, 10.0), seen(0, 8, 10.5)]
    right = rehearsal.combine(task, runs, None, predicted_gib=19.5)
    wrong = rehearsal.combine(task, runs, None, predicted_gib=13.0)
    assert right.above_prediction == pytest.approx(0.0) and wrong.above_prediction == pytest.approx(0.5)
    assert rehearsal.combine(task, runs, None, predicted_gib=None).above_prediction is None


def test_a_peak_over_the_memory_of_a_gpu_is_refused_with_its_field() -> None:
    task = trial(Fsdp2Config(dp_shard=512))
    runs = [seen(0, 4, 10.0), seen(0, 8, 10.5)]
    fits = rehearsal.combine(task, runs, None, predicted_gib=19.5, available_gib=19.6)
    assert fits.builds and fits.problem is None and fits.available_gib == 19.6
    full = rehearsal.combine(task, runs, None, predicted_gib=19.5, available_gib=19.4)
    assert full.builds and full.problem is not None
    assert (full.problem.code, full.problem.field) == ("over_memory", "cluster.memory_gib")
    assert full.problem.value == f"{task.cluster.memory_gib:g}"
    assert full.allocated_gib == pytest.approx(19.5) and "more ranks" in full.problem.message


def test_a_model_of_unknown_depth_is_unsupported_and_no_misfit() -> None:
    task = trial(Fsdp2Config(dp_shard=512))
    config = {name: value for name, value in task.model.config.items() if name != "num_hidden_layers"}
    unknown = task.model_copy(update={"model": task.model.model_copy(update={"config": config})})
    problem = rehearsal.plan(unknown)
    assert isinstance(problem, RehearsalProblem) and (problem.code, problem.field) == ("unsupported", "model")
    ddp = rehearsal.plan(trial(DdpConfig()))  # type: ignore[arg-type]
    assert isinstance(ddp, RehearsalProblem) and (ddp.code, ddp.field) == ("unsupported", "backend")


@pytest.mark.parametrize(
    ("task", "field", "value"),
    [
        (trial(Fsdp2Config(dp_shard=512), global_batch=500), "global_batch", "500"),
        (trial(Fsdp2Config(dp_shard=64, pipeline_parallel=7)), "pipeline_parallel", "7"),
        (trial(Fsdp2Config(dp_shard=4, pipeline_parallel=128), global_batch=1024), "pipeline_parallel", "128"),
    ],
)
def test_what_cannot_be_divided_is_rejected_before_a_process_starts(task: TrialTask, field: str, value: str) -> None:
    with pytest.raises(ValueError) as caught:
        rehearsal.tasks(task)
    problem = RehearsalProblem.misfit(str(caught.value))
    assert (problem.code, problem.field, problem.value) == ("misfit", field, value)
    result = rehearsal.combine(task, (), problem, predicted_gib=1.0)
    assert not result.builds and result.problem == problem and result.allocated_gib is None
