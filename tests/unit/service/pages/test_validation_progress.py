"""Progress of a final comparison on a study's page: which of its runs are in pairs, and which pairs count."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study_result import FinalComparison, StudyResult, Verdict
from shardtune.service.pages.views.study_sections.progress import _validation_runs
from tests.support.values.synthetic_studies import contender_of, study_of

BASELINE = contender_of(TrialConfig(strategy=DdpConfig()))


def shown(complete: int, uneven: int = 0, number: int = 0) -> str:
    comparison = FinalComparison(
        number=number, candidates=(3,), pairs=10, uneven_pairs=uneven, runs=60, gpu_seconds=1, ratios=(1.1,) * 10
    )
    result = StudyResult(
        best=BASELINE, baseline=BASELINE, speedup=None, verdict=Verdict.NOT_FASTER, final_comparison=comparison
    )
    study = study_of().model_copy(update={"result": result, "final_comparison": 0, "final_comparison_runs": 54})
    (fact,) = _validation_runs(study, complete)
    return fact.text


@pytest.mark.parametrize(
    ("complete", "uneven", "told"),
    [
        (20, 0, "20 of at most 54: enough for the verdict"),
        (40, 10, "; 20 in pairs that count; 20 in pairs that were left out"),
        (46, 10, "; 20 in pairs that were left out; the others came before the pairs, or lack a partner"),
        (26, 0, "; 20 in pairs that count; the others came before the pairs, or lack a partner"),
    ],
)
def test_runs_of_pairs_that_were_left_out_did_not_choose_what_to_pair(complete: int, uneven: int, told: str) -> None:
    assert shown(complete, uneven).endswith(told)


def test_runs_of_a_later_comparison_are_not_counted_by_the_pairs_of_an_earlier_one() -> None:
    assert "in pairs" not in shown(30, number=3)
