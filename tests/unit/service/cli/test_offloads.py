"""`tune` over hosts waits for the build of DeepSpeed's CPU Adam only where a configuration may need it."""

import pytest

from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.cli.tune.offloads import may_offload_optimizer

ZERO_BASELINE = {"strategy": {"kind": "zero", "stage": 3, "offload_optimizer": {"device": "cpu"}}, "micro_batch": 1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"space": {"backends": ["ddp", "fsdp2"]}}, False),
        ({"space": {"knobs": {"offload_optimizer": "none"}}}, False),
        ({"space": {"knobs": {"offload_optimizer": ["none"]}}}, False),
        ({"space": {"knobs": {"offload_optimizer": ["none", "cpu"]}}}, True),
        ({"space": {"backends": ["ddp"]}, "baseline": ZERO_BASELINE}, True),
        ({"space": {"backends": ["ddp"]}, "baseline": {"strategy": {"kind": "ddp"}, "micro_batch": 1}}, False),
        (
            {
                "space": {"knobs": {"offload_optimizer": "none"}},
                "baseline": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
            },
            True,
        ),
    ],
)
def test_the_operator_is_built_only_for_studies_that_may_offload_the_optimizer(changes, expected):
    workload = {"sequence_length": 64, "global_batch": 8}
    assert (
        may_offload_optimizer(StudyRequest.model_validate({"model": "llama-tiny", "workload": workload, **changes}))
        is expected
    )
