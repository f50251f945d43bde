"""Studies that a plan names: what it takes from them, and which it rejects."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.trials.plans import Goodput, Plan, PlanRequest
from shardtune.api_schemas.trials.resume_check import ResumeCheck, ResumeOutcome
from shardtune.tuner.plans.plan import plan
from shardtune.tuner.plans.resume_times import resume_times
from tests.support.values.planned_studies import MODEL, planned_study
from tests.support.values.tracked_study import study

NOW = datetime(2026, 11, 25, tzinfo=UTC)
TINY = preset("llama-tiny")
LARGER = ModelSpec(name="llama-tiny", config=TINY.config | {"num_hidden_layers": 9})
MEASURED = ResumeCheck(trial_number=0, outcome=ResumeOutcome.PASSED, save_s=12.5, load_s=7.25)
UNCHECKED = ResumeCheck(trial_number=0, outcome=ResumeOutcome.NOT_CHECKED, reason="no live worker is of a release")


def checked(check: ResumeCheck | None, **workload: object) -> Study:
    """Study of CPU ranks."""
    best = Contender(
        trial_number=0, config=TrialConfig(strategy=DdpConfig()), description="DDP", tokens_per_s_per_gpu=1.0,
        peak_allocated_gib=None, peak_reserved_gib=None, runs=1,
    )  # fmt: skip
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED, resume_check=check)
    spec = study().spec.model_dump()
    spec["workload"] |= workload
    return study().model_copy(update={"result": result, "spec": StudySpec.model_validate(spec)})


def planned(stored: Study, model: object = TINY, **values: Any) -> Plan:
    default = {"model": model, "tokens": 1e9, "gpus": ["h100"], "counts": [8], "study": stored.study_id}
    return plan(PlanRequest.model_validate(default | values), NOW, study=stored)


def test_the_times_of_a_resume_check_name_their_study_and_its_ranks() -> None:
    times = resume_times(checked(MEASURED))
    assert times is not None and (times.save_s, times.load_s) == (12.5, 7.25)
    assert times.note.startswith(
        "study study-1: its resume check saved a checkpoint in 12.5 s and loaded it in 7.25 s on "
    )
    assert times.note.endswith("which was not scaled to other sizes")


@pytest.mark.parametrize(
    ("goodput", "words"),
    [
        ({}, "12.5 s a checkpoint, 607.25 s a restart"),
        ({"checkpoint_s": 60}, "60 s a checkpoint, 607.25 s a restart"),
        ({"restart_s": 600.0}, "12.5 s a checkpoint, 600 s a restart"),
    ],
)
def test_a_resume_check_gives_the_times_that_the_request_leaves_out(goodput: dict[str, float], words: str) -> None:
    made = planned(checked(MEASURED), goodput=goodput)
    assert any(words in note for note in made.notes) and "its resume check saved" in made.notes[-1]
    assert {row.evidence for row in made.rows} == {"predicted"}
    assert any("no row is of its speeds: it measured 2 CPU ranks, which gpus (h100) leave out" in n for n in made.notes)


def test_a_study_without_a_resume_check_leaves_the_default_times() -> None:
    made, default = planned(planned_study(), MODEL), Goodput()
    words = f"{default.checkpoint_s:g} s a checkpoint, {default.restart_s:g} s a restart"
    assert any(words in note for note in made.notes) and made.rows[0].evidence == "measured"


@pytest.mark.parametrize(
    ("stored", "model", "words"),
    [
        (
            checked(MEASURED),
            LARGER,
            r"study \(study-1\) trained llama-tiny, and the plan is of another llama-tiny, .*; name a study",
        ),
        (
            checked(MEASURED),
            preset("gpt2"),
            r"study \(study-1\) trained llama-tiny, and the plan is of gpt2, .*; name a study",
        ),
        (study(), TINY, r"study \(study-1\) has no answer, it is cancelled; name a complete study"),
        (
            checked(MEASURED, adapter={"kind": "lora"}),
            TINY,
            r"study \(study-1\) trained LoRA r=16, whose checkpoint leaves out frozen weights, .*; name a study",
        ),
        (
            checked(MEASURED, optimizer={"kind": "muon"}),
            TINY,
            r"trained with muon, whose states have another size in a checkpoint than adamw's; name a study",
        ),
        (checked(None), TINY, "has no times of a resume check, and no row is of its speeds: it measured 2 CPU ranks"),
        (checked(UNCHECKED), TINY, "has no times of a resume check: no live worker is of a release, and no row"),
    ],
)
def test_a_study_without_a_figure_of_the_plans_training_is_rejected(
    stored: Study, model: ModelSpec, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        planned(stored, model)


def test_sequence_length_and_precision_are_those_of_the_study_or_rejected() -> None:
    shorter = planned_study(workload={"sequence_length": 2048})
    assert planned(shorter, MODEL).sequence_length == 2048
    assert planned(shorter, MODEL, sequence_length=2048).rows[0].evidence == "measured"
    with pytest.raises(
        ValueError, match=r"sequence_length \(4096\) is not that of study study-1, .* 2048 tokens; leave"
    ):
        planned(shorter, MODEL, sequence_length=4096)
    assert planned(shorter, MODEL, precision="bf16-mixed").rows[0].evidence == "measured"
    with pytest.raises(ValueError, match=r"precision \(fp32\) is not that of study study-1, .* in bf16-mixed; leave"):
        planned(shorter, MODEL, precision="fp32")


@pytest.mark.parametrize("workload", [{"data": {"lengths": [64, 4096]}}, {"float8": "tensorwise"}])
def test_speeds_of_another_kind_of_training_are_no_rows(workload: dict[str, object]) -> None:
    stored = planned_study(workload=workload)
    with pytest.raises(ValueError, match=r"and no row is of its speeds: it(s samples have several| trained in float8)"):
        planned(stored, MODEL)
    timed = planned_study(workload=workload, resume_check=MEASURED)
    assert {row.evidence for row in planned(timed, MODEL).rows} == {"predicted"}


def test_a_study_is_rejected_where_none_is_stored() -> None:
    request = PlanRequest.model_validate(
        {"model": "llama-tiny", "tokens": 1e9, "gpus": ["h100"], "counts": [8], "study": "study-9"}
    )
    with pytest.raises(
        ValueError, match=r"study \(study-9\) is stored by a service, and this plan is made without one"
    ):
        plan(request, NOW)
