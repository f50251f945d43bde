"""Checks of a study before any process starts."""

from pathlib import Path

import pytest

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.cli.tune.early_checks import expected_cluster


@pytest.mark.parametrize("name", ["nvidiactl", "dxg"])
def test_a_machine_with_a_driver_is_not_taken_for_cpu_ranks(tmp_path: Path, name: str) -> None:
    """WSL2 has no nvidiactl."""
    request = StudyRequest.model_validate(
        {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}, "cluster": "local"}
    )
    files = (tmp_path / "nvidiactl", tmp_path / "dxg")
    without = expected_cluster(request, None, files)
    assert without is not None and (without.device, without.gpus_per_node) == ("cpu", 2)
    (tmp_path / name).touch()
    assert expected_cluster(request, None, files) is None
