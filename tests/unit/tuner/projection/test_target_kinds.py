"""Kind of GPU of a target: another kind, a name of several kinds and an unknown name are different mistakes."""

import pytest

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.tuner.prediction import catalogue
from shardtune.tuner.projection import rungs


def study(gpu: str) -> StudyRequest:
    workload = {"sequence_length": 64, "global_batch": 512}
    target = {"nodes": 8, "gpus_per_node": 8, "gpu": gpu}
    return StudyRequest.model_validate({"model": "llama-tiny", "workload": workload, "target": target})


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("a100", r"target.gpu \('a100'\) can be any of A100-SXM4-40GB, A100-SXM4-80GB, .*; name one of them"),
        ("a1000", r"target.gpu \('a1000'\) is not in the catalogue; use "),
    ],
)
def test_a_name_of_no_kind_or_of_several_is_rejected_with_its_own_remedy(gpu: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rungs.for_rung(study(gpu), catalogue.parse_cluster("2x8xa100-80gb"))


def test_any_name_of_the_cluster_s_own_kind_is_accepted() -> None:
    for gpu in ("a100-80gb", "NVIDIA A100-SXM4-80GB"):
        assert rungs.for_rung(study(gpu), catalogue.parse_cluster("2x8xa100-80gb")).target is not None
    own = catalogue.parse_cluster("2x8xa100-80gb").model_copy(update={"gpu": "Homemade 9000"})
    with pytest.raises(ValueError, match="is not the cluster's kind"):
        rungs.for_rung(study("a100"), own, has_worker=False)
