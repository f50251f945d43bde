"""Diagnoses that a worker sends are foreign data: each is rejected with its fields, or shown without an error."""

import json
import os
from random import Random

import pytest
from pydantic import ValidationError

from shardtune.api_schemas.trials.diagnosis import Diagnosis, Finding, LateRank, MemoryMoment, RemedyResult
from shardtune.api_schemas.trials.expected_parts import ExpectedPart
from shardtune.service.cli.commands.explain import show
from shardtune.service.pages.views.diagnosis.page import diagnosis_report
from shardtune.tuner.diagnosis import explain
from tests.support.service.simulated_worker import diagnosis
from tests.support.values.mutated_json import mutate

FULL = diagnosis(
    late_rank=LateRank(rank=1, share_of_waiting=0.7, others_wait_s=0.1, steps=2),
    findings=(
        Finding(
            kind="host_bound",
            evidence="e",
            measured=0.5,
            threshold=0.2,
            remedy="r",
            expected_gain=0.3,
            remedy_result=RemedyResult(study_id="s", outcome="faster", speedup=1.2, ci95=(1.1, 1.3), pairs=7),
        ),
    ),
    expected=(ExpectedPart(name="computing", measured_s=0.5, expected_s=0.4),),
)
MEMORY = MemoryMoment(
    rank=0,
    bytes=1 << 30,
    limit_bytes=1 << 29,
    peak_bytes=1 << 30,
    reserved_bytes=1 << 31,
    phase="backward",
    module="m",
    kinds={"activations": 1 << 29, "parameters": 1 << 29},
    holders={"m": 1 << 29},
)
PLAIN = FULL.model_copy(update={"recorded": FULL.recorded.model_copy(update={"memory": MEMORY})}).model_dump(
    mode="json"
)


def is_shown(value) -> bool:
    """Whether the schema takes the value; what it takes must be shown everywhere."""
    try:
        valid = Diagnosis.model_validate_json(json.dumps(value))
    except (ValidationError, UnicodeEncodeError):
        return False
    diagnosis_report(explain.explain(valid, None, None))
    show(valid)
    return True


def test_the_whole_diagnosis_is_shown():
    assert is_shown(PLAIN)


@pytest.mark.parametrize("seed", range(6))
def test_a_diagnosis_with_any_values_is_rejected_or_shown(seed, capsys):
    random = Random(seed)
    for _ in range(int(os.environ.get("SHARDTUNE_FUZZ_INPUTS", "40"))):
        is_shown(mutate(PLAIN, random, random.randrange(1, 4)))
    assert "\x1b" not in capsys.readouterr().out
