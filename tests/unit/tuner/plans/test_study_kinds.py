"""Rows of plans by a study's kind of GPU, its network and its long run: none claims more than the study says."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.verdicts import SustainedOutcome, SustainedSpeed
from shardtune.api_schemas.trials.plans import Plan, PlanRequest
from shardtune.tuner.plans.plan import plan
from tests.support.values.planned_studies import MODEL, TARGET_BATCH, contenders, planned_study
from tests.support.values.target_studies import projection_of, sizes_of

NOW = datetime(2026, 11, 25, tzinfo=UTC)


def planned(study: Study, **values: Any) -> Plan:
    default = {"model": MODEL, "tokens": 3e11, "gpus": ["h100"], "counts": [8, 64], "study": study.study_id}
    return plan(PlanRequest.model_validate(default | values), NOW, study=study)


@pytest.mark.parametrize("driver", ["NVIDIA H200 NVL", "NVIDIA H200 MIG 1g.18gb"])
def test_a_study_of_a_slice_or_of_a_neighbouring_product_measured_no_row(driver: str) -> None:
    study = planned_study(projection=None)
    other = study.model_copy(update={"cluster": study.cluster.model_copy(update={"gpu": driver})})
    with pytest.raises(ValueError, match=rf"it measured 8 × {driver}, which gpus \(h200\) leave out"):
        planned(other, gpus=["h200"])


def test_an_unknown_kind_is_the_error_and_not_the_study() -> None:
    with pytest.raises(ValueError, match=r"gpus \('h1000'\) is not in the catalogue; use "):
        planned(planned_study(), gpus=["h1000"])


def test_the_hours_of_a_projection_over_leaf_switches_reach_as_far_as_the_band_of_its_speed() -> None:
    sizes = sizes_of("8x8", MODEL, "1x8xh100", TARGET_BATCH)
    leaves = {"nodes_per_leaf": 2, "oversubscription": 8.0}
    projection = projection_of(
        replace(sizes, target=sizes.target.model_copy(update=leaves)), contenders((0.9, 0.8)), []
    )
    stated = {"counts": [64], "nodes_per_leaf": 2, "oversubscription": 8.0}
    (there,) = planned(planned_study(projection=projection), **stated).rows
    speed = there.tokens_per_s_per_gpu
    assert there.evidence == "projected" and speed.expected / speed.low > 1.1 * speed.high / speed.expected
    assert there.hours.high / there.hours.expected >= speed.expected / speed.low
    assert there.hours.expected / there.hours.low >= speed.high / speed.expected


def test_a_slower_long_run_lowers_no_speed_of_another_kind_and_no_note_says_so() -> None:
    projection = projection_of(sizes_of("8x8xh200", MODEL, "1x8xh100", TARGET_BATCH), contenders(), [])
    best = contenders()[0]
    sustained = SustainedSpeed(
        trial_number=0, outcome=SustainedOutcome.MEASURED, compared_tokens_per_s_per_gpu=best.tokens_per_s_per_gpu,
        tokens_per_s_per_gpu=0.9 * best.tokens_per_s_per_gpu, is_slower=True,
    )  # fmt: skip
    study = planned_study(projection=projection, sustained=sustained)
    words = "its speeds on H100-SXM5-80GB are 10.0% below those of its comparison"
    assert any(words in note for note in planned(study, gpus=["h100", "h200"], counts=[8, 64]).notes)
    assert not any("below those" in note for note in planned(study, gpus=["h200"], counts=[64]).notes)
