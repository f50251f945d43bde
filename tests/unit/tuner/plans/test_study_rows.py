"""Rows of plans that a study measured or projected: each says which, and has the study's figures and band."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.target_confirmations import MeasuredOnTarget, TargetConfirmation
from shardtune.api_schemas.studies.verdicts import SustainedOutcome, SustainedSpeed
from shardtune.api_schemas.trials.plan_rows import PlanRow
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeOutcome
from shardtune.service.mcp.plan_tool import plan_answer
from shardtune.tuner.plans.measured_band import measured_band
from shardtune.tuner.plans.plan import plan
from tests.support.values.planned_studies import BASELINE, BATCH, BEST, MODEL, TARGET_BATCH, contenders, planned_study
from tests.support.values.target_studies import projection_of, sizes_of

NOW = datetime(2026, 11, 25, tzinfo=UTC)


def planned(study: Study | None, **values: Any) -> Plan:
    default = {"model": MODEL, "tokens": 3e11, "gpus": ["h100"], "counts": [8, 16, 64, 128]}
    named = {} if study is None else {"study": study.study_id}
    return plan(PlanRequest.model_validate(default | named | values), NOW, study=study)


def rows(study: Study | None, **values: Any) -> dict[tuple[str, int], PlanRow]:
    return {(row.gpu, row.gpus): row for row in planned(study, **values).rows}


def test_each_row_says_whether_the_study_measured_or_projected_it() -> None:
    study = planned_study()
    assert study.result is not None and study.result.projection is not None
    best, projection = study.result.best, study.result.projection
    plan_rows = rows(study, gpus=["h100", "h200"], counts=[4, 8, 16, 64, 128])
    sources = {place: (row.evidence, row.verdict, row.study_id) for place, row in plan_rows.items()}
    assert sources["h100", 8] == ("measured", "confirmed", study.study_id)
    for count in (16, 64, 128):
        assert sources["h100", count] == ("projected", None, study.study_id)
    others = [("h100", 4), *(("h200", count) for count in (4, 8, 16, 64, 128))]
    assert {sources[place] for place in others} == {("predicted", None, None)}
    own = plan_rows["h100", 8]
    assert (own.config, own.global_batch, own.extrapolated_from) == (best.config, BATCH, (8,))
    assert own.tokens_per_s_per_gpu == measured_band(best)
    assert (own.memory_gib, own.memory_evidence, own.may_not_fit) == (best.peak_allocated_gib, "measured", False)
    there = plan_rows["h100", 64]
    assert (there.config, there.global_batch) == (projection.best.config, projection.global_batch)
    assert there.tokens_per_s_per_gpu == projection.best.tokens_per_s_per_gpu
    assert (there.memory_gib, there.memory_evidence) == (projection.best.memory_gib.expected, "projected")
    between = next(size for size in projection.sizes if size.gpus == 16)
    assert plan_rows["h100", 16].tokens_per_s_per_gpu == between.tokens_per_s_per_gpu
    assert plan_rows["h100", 16].memory_evidence == "predicted"
    beyond = plan_rows["h100", 128]
    assert (beyond.extrapolated_from, beyond.global_batch) == ((8,), TARGET_BATCH)


def test_a_plan_says_that_its_choices_compare_predicted_rows_with_measured_ones() -> None:
    words = "the choices compare predicted rows with others"
    for study, kinds, says in (
        (planned_study(), ["h100", "h200"], True),
        (planned_study(), ["h100"], False),
        (None, ["h100"], False),
    ):
        assert any(words in note for note in planned(study, gpus=kinds).notes) == says


def test_a_row_without_a_study_is_the_same_as_beside_one() -> None:
    kinds = ["h100", "h200"]
    with_study, without = rows(planned_study(), gpus=kinds), rows(None, gpus=kinds, global_batch=TARGET_BATCH)
    assert with_study["h200", 64] == without["h200", 64]
    assert with_study["h100", 8] != without["h100", 8]


def test_the_hours_of_a_measured_row_follow_from_its_speed_and_the_band_of_its_runs() -> None:
    own, predicted = rows(planned_study())["h100", 8], rows(None)["h100", 8]
    tokens = own.tokens_per_s_per_gpu.expected * own.gpu_hours.expected * 3600 * own.goodput
    assert tokens == pytest.approx(3e11, rel=1e-6)
    assert own.hours.high / own.hours.low < 1.25 < predicted.hours.high / predicted.hours.low


@pytest.mark.parametrize("verdict", [Verdict.UNDECIDED, Verdict.NOT_FASTER])
def test_an_unconfirmed_answer_is_measured_and_says_so(verdict: Verdict) -> None:
    made = planned(planned_study(verdict))
    own = made.rows[0]
    assert (own.evidence, own.verdict, own.config) == ("measured", verdict.value, BEST)
    assert any("not confirmed" in note and "it measured 8 × h100" in note for note in made.notes)


def test_a_busy_machine_gives_its_baseline_and_nothing_is_projected_from_it() -> None:
    made = planned(planned_study(Verdict.TOO_BUSY))
    own, *others = made.rows
    assert (own.evidence, own.verdict, own.config) == ("measured", "too_busy", BASELINE)
    assert {row.evidence for row in others} == {"predicted"}
    assert any("other programs disturbed its runs" in note for note in made.notes)
    assert own.tokens_per_s_per_gpu == measured_band(contenders()[1], is_disturbed=True)


def test_another_batch_than_the_studys_is_projected_and_not_measured() -> None:
    made = planned(planned_study(), global_batch=512, counts=[8, 64])
    own, there = made.rows
    assert (own.evidence, own.global_batch, own.extrapolated_from) == ("projected", 512, (8,))
    assert (there.evidence, there.global_batch) == ("projected", 512)
    assert any("its speed on 8 GPUs is of 64 samples a step, and global_batch is 512" in note for note in made.notes)
    assert rows(planned_study(), global_batch=64, counts=[8])["h100", 8].evidence == "measured"


def test_the_batch_is_that_of_the_study_or_one_sample_for_each_gpu() -> None:
    tuned = {count: row.global_batch for (_, count), row in rows(planned_study(), counts=[8, 16, 128]).items()}
    assert tuned == {8: BATCH, 16: 2 * BATCH, 128: TARGET_BATCH}
    alone = planned(planned_study(projection=None), counts=[8, 16])
    assert {row.global_batch for row in alone.rows} == {BATCH}
    assert not any("samples a step, and more of them" in note for note in alone.notes)
    most = planned(planned_study(projection=None), counts=[8, 1024])
    assert [row.global_batch for row in most.rows] == [BATCH, 1024]
    assert any("rows have 64 to 1,024 samples a step" in note for note in most.notes)


def test_other_sizes_have_the_studys_own_configuration_also_where_a_plan_tries_none_like_it() -> None:
    compiled = tuple(config.model_copy(update={"compile": True}) for config in (BEST, BASELINE))
    best, baseline = contenders(configs=compiled)
    made = rows(planned_study(best=best, baseline=baseline, projection=None), counts=[8, 16], global_batch=128)
    assert made["h100", 16].evidence == "projected" and made["h100", 16].config.compile
    assert made["h100", 16].study_id == "study-1"


def test_nodes_of_another_size_are_not_those_of_the_study() -> None:
    with pytest.raises(
        ValueError, match="no row is of its 8 GPUs: its nodes have 8 GPUs, and gpus_per_node is 4; name a"
    ):
        planned(planned_study(), gpus_per_node=4, counts=[4])
    check = ResumeCheck(trial_number=0, outcome=ResumeOutcome.PASSED, save_s=12.5, load_s=7.25)
    made = planned(planned_study(resume_check=check), gpus_per_node=4, counts=[4, 8, 64])
    assert {row.evidence for row in made.rows} == {"predicted"}
    assert any("of its 8 and 64 GPUs: its nodes have 8 GPUs, and gpus_per_node is 4" in note for note in made.notes)


def test_a_target_of_another_kind_of_gpu_is_the_row_of_that_kind() -> None:
    projection = projection_of(sizes_of("8x8xh200", MODEL, "1x8xh100", TARGET_BATCH), contenders(), [])
    study = planned_study(projection=projection)
    for kinds in (["h100", "h200"], ["h200"]):
        made = planned(study, gpus=kinds, counts=[8, 64])
        found = {(row.gpu, row.gpus): row for row in made.rows}
        there = found["h200", 64]
        assert (there.evidence, there.study_id) == ("projected", study.study_id)
        assert there.tokens_per_s_per_gpu == projection.best.tokens_per_s_per_gpu
        assert any("it projected 64 × h200 with 512 samples a step from 8 × H100" in note for note in made.notes)
        if "h100" in kinds:
            assert (found["h100", 8].evidence, found["h100", 64].evidence) == ("measured", "projected")
            assert found["h100", 64].tokens_per_s_per_gpu != there.tokens_per_s_per_gpu
    best = contenders()[0]
    sustained = SustainedSpeed(
        trial_number=0, outcome=SustainedOutcome.MEASURED, compared_tokens_per_s_per_gpu=best.tokens_per_s_per_gpu,
        tokens_per_s_per_gpu=0.9 * best.tokens_per_s_per_gpu, is_slower=True,
    )  # fmt: skip
    warm = rows(planned_study(projection=projection, sustained=sustained), gpus=["h200"], counts=[64])["h200", 64]
    assert warm.tokens_per_s_per_gpu == projection.best.tokens_per_s_per_gpu, "clocks of the study's own kind"


def test_another_network_than_the_targets_is_not_projected_to() -> None:
    study = planned_study()
    assert study.result is not None and study.result.projection is not None
    projection = study.result.projection
    cluster = projection.cluster.model_copy(update={"inter_node_gb_per_s": 400.0})
    stated = planned_study(projection=projection.model_copy(update={"cluster": cluster}))
    assert rows(stated, network="infiniband-ndr")["h100", 64].config == projection.best.config
    made = planned(stated, network="tcp-100")
    assert any("its network has 400 GB/s a node, and network (tcp-100) has 12.5" in note for note in made.notes)
    slow = {row.gpus: row for row in made.rows}
    assert slow[8].evidence == "measured" and slow[64].tokens_per_s_per_gpu != projection.best.tokens_per_s_per_gpu


def test_a_long_run_that_was_slower_lowers_every_speed_of_the_study() -> None:
    best = contenders()[0]
    speed = best.tokens_per_s_per_gpu
    sustained = SustainedSpeed(
        trial_number=0, outcome=SustainedOutcome.MEASURED, compared_tokens_per_s_per_gpu=speed,
        tokens_per_s_per_gpu=0.9 * speed, is_slower=True,
    )  # fmt: skip
    slower, before = planned(planned_study(sustained=sustained)), planned(planned_study())
    for row, other in zip(slower.rows, before.rows, strict=True):
        assert row.tokens_per_s_per_gpu.expected == pytest.approx(0.9 * other.tokens_per_s_per_gpu.expected, rel=1e-6)
    assert any("its speeds are 10.0% below those of its comparison" in note for note in slower.notes)
    steady = planned_study(sustained=sustained.model_copy(update={"is_slower": False}))
    assert planned(steady).rows == before.rows


@pytest.mark.parametrize(
    ("outcome", "interval", "verdict"),
    [
        ("confirmed", (1.02, 1.2), "confirmed"),
        ("confirmed", None, "confirmed"),
        ("changed", (0.8, 0.95), "confirmed"),
        ("changed", (0.9, 1.05), "undecided"),
        ("undecided", (0.9, 1.1), "undecided"),
    ],
)
def test_a_row_of_a_target_on_which_a_study_ran_is_measured(
    outcome: Any, interval: tuple[float, float] | None, verdict: str
) -> None:
    study = planned_study()
    assert study.result is not None and study.result.projection is not None
    projection = study.result.projection
    answer = projection.runners_up[0] if outcome == "changed" else projection.best
    ran = MeasuredOnTarget(
        config=answer.config, description=answer.description, tokens_per_s_per_gpu=5000.0, runs=4,
        projected=answer.tokens_per_s_per_gpu, error=0.1, is_inside_band=True,
    )  # fmt: skip
    confirmation = TargetConfirmation(
        study_id="study-there", outcome=outcome, config=answer.config, description=answer.description, measured=(ran,),
        speedup=1.1, ci95=interval, pairs=7, confirmed_at=NOW,
    )  # fmt: skip
    changes = {"verdict": "projected" if outcome == "undecided" else outcome, "confirmation": confirmation}
    there = rows(planned_study(projection=projection.model_copy(update=changes)))["h100", 64]
    assert (there.evidence, there.verdict, there.study_id) == ("measured", verdict, "study-there")
    assert (there.config, there.tokens_per_s_per_gpu.expected) == (answer.config, 5000.0)
    assert there.tokens_per_s_per_gpu.low < 5000.0 < there.tokens_per_s_per_gpu.high
    assert there.extrapolated_from == (64,)


def test_a_measurement_of_the_request_is_the_row_only_where_it_is_faster_than_the_studys() -> None:
    study, predicted = planned_study(), rows(None, counts=[8], global_batch=64)["h100", 8]
    speed = rows(study, counts=[8])["h100", 8].tokens_per_s_per_gpu.expected
    stated = {
        "gpu": "h100", "gpus": 8, "config": predicted.config.model_dump(),
        "gradient_accumulation": 64 // (predicted.config.micro_batch * predicted.config.data_ranks(8)),
    }  # fmt: skip
    for factor, owner in ((0.8, study.study_id), (1.2, None)):
        measurement = stated | {"tokens_per_s_per_gpu": factor * speed}
        row = rows(study, counts=[8], global_batch=64, measurements=[measurement])["h100", 8]
        assert (row.evidence, row.study_id) == ("measured", owner)
        assert row.tokens_per_s_per_gpu.expected == pytest.approx(max(factor, 1.0) * speed)


def test_agents_get_the_verdict_and_the_source_of_each_figure() -> None:
    made = planned(planned_study(Verdict.UNDECIDED), counts=[8, 64], prices={"h100": 2.0})
    choices = {choice.gpus: choice for choice in plan_answer(made, 5).choices}
    own, there = choices[8], choices[64]
    assert (own.speed.basis, own.verdict) == ("measured", "undecided")
    assert own.speed.source == "study study-1 on 8 GPUs, measured, not confirmed (undecided)"
    assert (own.memory.basis, own.days.basis) == ("measured", "projected")
    assert (there.speed.basis, there.verdict, there.memory.basis) == ("projected", None, "projected")
    assert there.speed.source == "projection from measurements on 8 GPUs of study study-1"
