"""Times of checkpoints that a study's resume check measured, and studies that have none for a plan."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeOutcome
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.plan.lost_time import times_of
from tests.support.values.tracked_study import study

TINY = preset("llama-tiny")
LARGER = ModelSpec(name="llama-tiny", config=TINY.config | {"num_hidden_layers": 9})
MEASURED = ResumeCheck(trial_number=0, outcome=ResumeOutcome.PASSED, save_s=12.5, load_s=7.25)
UNCHECKED = ResumeCheck(trial_number=0, outcome=ResumeOutcome.NOT_CHECKED, reason="no live worker is of a release")


def checked(check: ResumeCheck | None, **workload: object) -> Study:
    best = Contender(
        trial_number=0, config=TrialConfig(strategy=DdpConfig()), description="DDP", tokens_per_s_per_gpu=1.0,
        peak_allocated_gib=None, peak_reserved_gib=None, runs=1,
    )  # fmt: skip
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED, resume_check=check)
    spec = study().spec.model_dump()
    spec["workload"] |= workload
    return study().model_copy(update={"result": result, "spec": StudySpec.model_validate(spec)})


def test_the_times_of_a_resume_check_name_their_study_and_its_ranks() -> None:
    times = times_of(checked(MEASURED), TINY)
    assert (times.save_s, times.load_s) == (12.5, 7.25)
    assert times.note.startswith(
        "study study-1: its resume check saved a checkpoint in 12.5 s and loaded it in 7.25 s on "
    )
    assert times.note.endswith("which was not scaled to other sizes")


@pytest.mark.parametrize(
    ("stored", "model", "words"),
    [
        (
            checked(MEASURED),
            LARGER,
            r"--study \(study-1\) trained llama-tiny, and the plan is of another llama-tiny, .*; name a study",
        ),
        (
            checked(MEASURED),
            preset("gpt2"),
            r"--study \(study-1\) trained llama-tiny, and the plan is of gpt2, .*; name a study",
        ),
        (
            study(),
            TINY,
            r"--study \(study-1\) has no times of a resume check; name a study whose result has them",
        ),
        (
            checked(MEASURED, adapter={"kind": "lora"}),
            TINY,
            r"--study \(study-1\) trained LoRA r=16, whose checkpoint leaves out frozen weights, .*; name a study",
        ),
        (
            checked(MEASURED, optimizer={"kind": "muon"}),
            TINY,
            r"trained with muon, whose states have another size in a checkpoint than adamw's; name a study",
        ),
        (checked(None), TINY, "has no times of a resume check; name"),
        (checked(UNCHECKED), TINY, "has no times of a resume check: no live worker is of a release; name"),
    ],
)
def test_a_study_without_times_of_the_plans_training_is_rejected(stored: Study, model: ModelSpec, words: str) -> None:
    with pytest.raises(InputError, match=words):
        times_of(stored, model)
