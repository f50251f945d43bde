"""The comparison itself is tested: strategies with planted faults must fail it."""

import pytest

from shardtune.api_schemas.trials.rank_reports import RankReport
from tests.rank.helpers import faulty_ranks
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = pytest.mark.ranks

FAULTS = ("none", "missing_all_reduce", "wrong_gradient_scale")


@pytest.fixture(scope="module")
def deviations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Deviation of each fault from the plain run, by quantity."""
    task = tiny_task({"kind": "ddp"}, parity_steps=4)
    folders = {fault: tmp_path_factory.mktemp(fault) for fault in FAULTS}
    for fault, folder in folders.items():
        (folder / "task.json").write_text(task.model_dump_json())
        faulty_ranks.run_ranks(fault, folder)
    reports = {
        fault: RankReport.model_validate_json((folder / "rank_0.json").read_text()) for fault, folder in folders.items()
    }
    return {fault: deviation(report.trajectory, train(task)) for fault, report in reports.items()}


def test_without_a_fault_the_comparison_passes(deviations: dict[str, dict[str, float]]) -> None:
    assert deviations["none"]["loss"] < 1e-5 and deviations["none"]["grad_norm"] < 1e-4


def test_a_missing_all_reduce_is_noticed(deviations: dict[str, dict[str, float]]) -> None:
    assert deviations["missing_all_reduce"]["grad_norm"] > 1e-2
    assert deviations["missing_all_reduce"]["loss"] > 1e-4


def test_a_wrong_gradient_scale_is_noticed(deviations: dict[str, dict[str, float]]) -> None:
    assert deviations["wrong_gradient_scale"]["grad_norm"] > 1e-1
