"""The live table of `tune` has the lines about pairs and kept runs that plain output has."""

import io
from datetime import UTC, datetime

from rich.console import Console

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.trials.trial import Attempt, AttemptEnd, Run, Trial, TrialOrigin, TrialState
from shardtune.service.cli.tune.live_table import LiveView
from tests.support.service.simulated_worker import measurement
from tests.support.values.synthetic_studies import study_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CONFIG = TrialConfig(strategy=DdpConfig())
PAIR = "pair 1 of at most 24: trial 7's 1,622 against the baseline's 880 tokens/s/GPU, 1.84x"


def comparing(repeat_disturbed: float = 0.5) -> Study:
    study = study_of()
    budget = Budget(max_trials=8, repeat_disturbed=repeat_disturbed)
    changes = {"state": StudyState.RUNNING, "phase": StudyPhase.FINAL_COMPARISON, "final_comparison": 1}
    return study.model_copy(update=changes | {"spec": study.spec.model_copy(update={"budget": budget})})


def trial_of(number: int, origin: TrialOrigin, *runs: Run) -> Trial:
    return Trial(
        number=number,
        state=TrialState.COMPLETE,
        origin=origin,
        config=CONFIG,
        description=CONFIG.describe(),
        runs=runs,
    )


def run_of(block: int, speed: float, disturbed: str | None = None) -> Run:
    attempt = Attempt(attempt=1, worker="w", started_at=NOW, finished_at=NOW, end=AttemptEnd.COMPLETE, gpu_seconds=9.0)
    return Run(
        run_id=f"{block}-{speed}",
        purpose="validation",
        final_comparison=1,
        comparison_block=block,
        state=TrialState.COMPLETE,
        measurement=measurement(speed).model_copy(update={"disturbed": disturbed}),
        attempts=(attempt,),
    )


def pair(*, open_block: int) -> list[Trial]:
    """Trials with one complete pair, and the next one begun."""
    planned = Run(
        run_id="open", purpose="validation", final_comparison=1, comparison_block=open_block, state=TrialState.WAITING
    )
    return [
        trial_of(0, TrialOrigin.DEFAULT, run_of(4, 880.0)),
        trial_of(7, TrialOrigin.SAMPLER, run_of(4, 1622.0), planned),
    ]


def shown(study: Study, *views: list[Trial]) -> str:
    """Text that a terminal receives while these trials are shown one after the other."""
    terminal = io.StringIO()
    with LiveView(Console(file=terminal, force_terminal=True, width=300, height=40)) as view:
        for trials in views:
            view.show(study, trials, [], 1.0)
    return terminal.getvalue()


def test_a_pair_is_printed_once_above_the_table() -> None:
    trials = pair(open_block=5)
    assert shown(comparing(), [], trials, trials).count(PAIR) == 1


def test_pairs_that_ended_before_the_table_was_opened_are_not_printed_again() -> None:
    trials = pair(open_block=5)
    assert PAIR not in shown(comparing(), trials, trials)


def test_a_run_that_is_kept_although_disturbed_is_named_with_the_reason() -> None:
    disturbed = [trial_of(0, TrialOrigin.DEFAULT, run_of(4, 880.0, disturbed="other programs kept 0.8 cores busy"))]
    text = shown(comparing(repeat_disturbed=0), [], disturbed, disturbed)
    assert text.count("disturbed, but kept: ") == 1 and "budget.repeat_disturbed is 0" in text
