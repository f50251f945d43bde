"""Advice while each run of a study was disturbed: it blames what disturbed the runs, and the newest one is the last."""

from datetime import UTC, datetime, timedelta

from shardtune.api_schemas.machines.conditions import OWN_PROCESSES, Conditions, ProgramLoad
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import Attempt, AttemptEnd, Run, Trial, TrialState
from shardtune.service.wording.progress.activity_words import describe_busy_search
from tests.support.service.simulated_worker import measurement
from tests.support.values.synthetic_studies import study_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPREAD = "its timed windows lie apart by ±30% of the step time"
CONFIG = TrialConfig(strategy=DdpConfig())


def comparing() -> Study:
    changes = {"state": StudyState.RUNNING, "phase": StudyPhase.FINAL_COMPARISON, "final_comparison": 2}
    return study_of().model_copy(update=changes)


def run_of(minute: int, program: str | None, comparison: int | None = None, *, is_disturbed: bool = True) -> Run:
    """A complete run that a program disturbed; None: the cause is not known."""
    loads = (ProgramLoad(name=program, cores=0.9),) if program else ()
    conditions = Conditions(foreign_cpu_cores=0.9, foreign_programs=loads) if program else None
    marks = (
        {"disturbed": "other programs kept 0.9 of 2 cores busy", "cores_left": 1.1}
        if program
        else {"disturbed": SPREAD}
    )
    ended = NOON + timedelta(minutes=minute)
    attempt = Attempt(
        attempt=1, worker="w", started_at=ended, finished_at=ended, end=AttemptEnd.COMPLETE, gpu_seconds=9.0
    )  # fmt: skip
    return Run(
        run_id=f"run-{minute}",
        purpose="search" if comparison is None else "validation",
        final_comparison=comparison,
        state=TrialState.COMPLETE,
        measurement=measurement(1000.0).model_copy(update=(marks if is_disturbed else {}) | {"conditions": conditions}),
        attempts=(attempt,),
    )


def trial_of(number: int, *runs: Run) -> Trial:
    return Trial(
        number=number, state=TrialState.COMPLETE, origin="default", config=CONFIG, description="DDP", runs=runs
    )  # fmt: skip


def advice(*runs_of_trials: tuple[Run, ...]) -> str | None:
    return describe_busy_search(comparing(), [trial_of(number, *runs) for number, runs in enumerate(runs_of_trials)])


def test_the_programs_of_the_newest_run_are_named() -> None:
    """Trials are listed by number: the last validation run may be of the first trial."""
    text = advice((run_of(0, "clang"), run_of(9, "chrome", 2)), (run_of(1, "clang"),), (run_of(2, "clang"),))
    assert text == (
        "end other programs (chrome on 0.9 cores) now: they disturbed every run so far, and a gain is confirmed "
        "only with an undisturbed pair"
    )
    unknown = advice((run_of(0, "clang"), run_of(9, None, 2)), (run_of(1, "clang"),), (run_of(2, "clang"),))
    assert unknown is not None and f"the last run: {SPREAD}" in unknown


def test_programs_are_not_blamed_for_runs_that_something_else_disturbed() -> None:
    text = advice((run_of(0, None),), (run_of(1, None),), (run_of(2, "clang"),))
    assert text is not None and text.startswith("end other programs (clang on 0.9 cores) now: every run so far was ")


def test_an_undisturbed_run_of_an_earlier_comparison_was_a_run_so_far() -> None:
    """After an extension it was said that every run so far was disturbed."""
    searched = ((run_of(0, "clang"),), (run_of(1, "clang"),), (run_of(2, "clang"),))
    assert advice(*searched) is not None
    quiet = run_of(5, "clang", 1, is_disturbed=False)
    assert advice((*searched[0], quiet, run_of(9, "clang", 2)), *searched[1:]) is None


def test_nobody_is_asked_to_end_shardtune_itself() -> None:
    """`end other programs (python on 0.2 cores)` meant the service of the same command."""
    text = advice(*((run_of(minute, OWN_PROCESSES),) for minute in range(3)))
    assert text is not None and text.startswith("end other programs now: they disturbed every run so far")
