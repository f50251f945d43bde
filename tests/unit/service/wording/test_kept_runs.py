"""Lines of runs that are kept although they were disturbed: which attempt it was, and why it is not repeated."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import Attempt, AttemptEnd, Run, Trial, TrialState
from shardtune.service.cli.tune.progress_lines import LineView
from shardtune.service.wording.progress import activity_words, kept_runs
from tests.support.service.simulated_worker import measurement
from tests.support.values.synthetic_studies import study_of

BUSY = "other programs kept 0.8 of 2 cores busy"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def searching(repeat_disturbed: float = 0.5) -> Study:
    study = study_of().model_copy(update={"state": StudyState.RUNNING, "phase": StudyPhase.SEARCH})
    budget = Budget(max_trials=8, repeat_disturbed=repeat_disturbed)
    return study.model_copy(update={"spec": study.spec.model_copy(update={"budget": budget})})


def trial_of(number: int, ends: str, *, is_disturbed: bool, purpose: str = "search") -> Trial:
    """A trial whose run had one attempt per letter of `ends`: d for a discarded one, c for the last, complete one."""
    attempts = tuple(
        Attempt(
            attempt=position + 1,
            worker="w",
            started_at=NOON,
            finished_at=NOON + timedelta(minutes=10 * number + position),
            end=AttemptEnd.DISTURBED if end == "d" else AttemptEnd.COMPLETE,
            gpu_seconds=9.0,
        )
        for position, end in enumerate(ends)
    )
    marks = {"disturbed": BUSY, "cores_left": 1.2} if is_disturbed else {}
    measured = measurement(1000.0).model_copy(update=marks)
    run = Run(run_id=f"r{number}", purpose=purpose, state=TrialState.COMPLETE, measurement=measured, attempts=attempts)
    config = TrialConfig(strategy=DdpConfig())
    return Trial(
        number=number,
        state=TrialState.COMPLETE,
        origin="sampler",
        config=config,
        description=config.describe(),
        tokens_per_s_per_gpu=1000.0,
        runs=(run,),
    )


def lines_of(study: Study, trials: Sequence[Trial]) -> list[str]:
    lines = list[str]()
    view = LineView(lines.append)
    for count in range(len(trials) + 1):
        view.show(study, trials[:count], [], 1.0)
    return lines


def test_a_steady_load_is_told_once_with_the_attempt_that_is_kept() -> None:
    """`disturbed, does not count: … attempt 4` was followed by a run that counted, and 26 lines said `not repeated`."""
    trials = [trial_of(0, "ddddc", is_disturbed=True), *(trial_of(n, "c", is_disturbed=True) for n in (1, 2))]
    lines = lines_of(searching(), trials)
    kept = (
        f"disturbed, but counts: search run of trial 0, attempt 5 ({BUSY}); after 4 in a row nothing is repeated until a "
        "run is undisturbed, and further lines say only (disturbed)"
    )
    assert [line for line in lines if line.startswith("disturbed, but")] == [kept]
    assert lines.index(kept) < next(at for at, line in enumerate(lines) if "tokens/s/GPU" in line)
    assert sum(line.count(" (disturbed)") for line in lines if "tokens/s/GPU" in line) == 3


def test_the_remedy_follows_the_first_run_that_is_kept() -> None:
    """It came with the final comparison, after all of the search was disturbed."""
    lines = lines_of(searching(), [trial_of(0, "ddddc", is_disturbed=True)])
    assert lines[-1].startswith("end other programs now: they disturbed every run so far")
    assert activity_words.describe_busy_search(searching(), [trial_of(0, "dc", is_disturbed=False)]) is None


def test_a_load_that_comes_back_is_told_again() -> None:
    trials = [
        trial_of(0, "ddddc", is_disturbed=True),
        trial_of(1, "c", is_disturbed=False),
        *(trial_of(number, "c", is_disturbed=False) for number in (2, 3)),
        trial_of(4, "ddddc", is_disturbed=True),
    ]
    assert [line[:13] for line in lines_of(searching(), trials)].count("disturbed, bu") == 2


def test_a_run_that_the_budget_does_not_repeat_names_the_limit() -> None:
    trials = [
        trial_of(0, "ddc", is_disturbed=False),
        trial_of(1, "ddc", is_disturbed=False),
        trial_of(2, "dc", is_disturbed=True),
    ]
    mark = " (disturbed; attempt 2 is kept, as all 5 repeats that the budget allows so far are used)"
    lines = lines_of(searching(), trials)
    assert [line.count(mark) for line in lines if "trial 2" in line and "tokens/s/GPU" in line] == [1]
    assert not any(line.startswith("disturbed, but") for line in lines), "another run may be repeated"


@pytest.mark.parametrize(
    ("study", "trial", "why"),
    [
        (searching(0), trial_of(0, "c", is_disturbed=True), "budget.repeat_disturbed is 0, so nothing is repeated"),
        (
            searching(),
            trial_of(0, "c", is_disturbed=True, purpose="sustained"),
            "a sustained run is never repeated",
        ),
    ],
)
def test_other_reasons_not_to_repeat_are_named(study: Study, trial: Trial, why: str) -> None:
    kept = kept_runs.kept_run(study, [trial], trial, trial.runs[0])
    assert kept is not None and kept.why == why and not kept.is_load_steady
