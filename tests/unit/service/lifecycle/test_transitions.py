"""The table of moves, exhaustively, and what each end of an attempt means."""

from datetime import UTC, datetime
from itertools import product

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.trial import ALLOWED_MOVES, TrialState
from shardtune.db.tables.trials import RunRow, TrialRow
from shardtune.service.lifecycle import transitions
from shardtune.service.lifecycle.outcomes import JudgedEnd, next_state
from shardtune.tuner.verdict import disturbance
from tests.support.service.simulated_worker import failure

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ENDS = {TrialState.INFEASIBLE, TrialState.PRUNED, TrialState.FAILED, TrialState.CANCELLED}


def test_table_is_the_documented_one():
    running = TrialState.RUNNING
    assert ALLOWED_MOVES[TrialState.WAITING] == {running, TrialState.CANCELLED}
    assert ALLOWED_MOVES[running] == set(TrialState) - {running}
    assert ALLOWED_MOVES[TrialState.COMPLETE] == {TrialState.INFEASIBLE}
    assert all(ALLOWED_MOVES[state] == frozenset() for state in ENDS)
    assert set(ALLOWED_MOVES) == set(TrialState)


@pytest.mark.parametrize(("here", "there"), list(product(TrialState, TrialState)))
def test_rows_move_only_along_the_table(here, there):
    trial = TrialRow(state=here, config=TrialConfig(strategy=DdpConfig()))
    run = RunRow(state=here)
    for row, move in ((trial, transitions.trial), (run, transitions.run)):
        if there in ALLOWED_MOVES[here]:
            move(row, there, NOW)
            assert row.state is there
            assert (row.finished_at is None) == (there in (TrialState.WAITING, TrialState.RUNNING))
        else:
            with pytest.raises(transitions.IllegalTransition):
                move(row, there, NOW)
            assert row.state is here


INFEASIBLE = [FailureKind.OOM, FailureKind.OVER_LIMIT, FailureKind.ILLEGAL, FailureKind.NUMERICS]
PLATFORM = sorted(set(FailureKind) - {*INFEASIBLE, FailureKind.NODE_LOST, FailureKind.DISTURBED})


def after(kind, earlier=(), purpose="search", is_release=False):
    return next_state(purpose, JudgedEnd(1.0, failure=failure(kind), is_release=is_release), list(earlier))


@pytest.mark.parametrize("kind", INFEASIBLE)
@pytest.mark.parametrize("purpose", ["model_summary", "search", "validation"])
def test_the_configurations_fault_is_final(kind, purpose):
    assert after(kind, purpose=purpose) is TrialState.INFEASIBLE


def test_a_worker_that_claims_to_be_disturbed_for_ever_is_not_asked_for_ever():
    ends = [FailureKind.DISTURBED.value] * disturbance.MAX_REPEATS
    assert after(FailureKind.DISTURBED, ends[:-1]) is TrialState.WAITING
    assert after(FailureKind.DISTURBED, ends) is TrialState.FAILED


@pytest.mark.parametrize("kind", PLATFORM)
def test_the_platforms_fault_is_retried_once(kind):
    assert after(kind) is TrialState.WAITING
    assert after(kind, [kind.value]) is TrialState.FAILED


@pytest.mark.parametrize("purpose", ["search", "validation", "model_summary"])
def test_a_lost_node_is_never_final_by_itself_but_ends_with_the_last_try(purpose):
    assert after(FailureKind.NODE_LOST, ["node_lost"] * 2, purpose) is TrialState.WAITING
    assert after(FailureKind.NODE_LOST, ["node_lost"] * 3, purpose) is TrialState.FAILED


def test_different_faults_are_retried_but_not_forever():
    assert after(FailureKind.CRASH, ["rank_lost"]) is TrialState.WAITING
    assert after(FailureKind.DEADLINE, ["crash", "rank_lost", "setup"]) is TrialState.FAILED


def test_a_run_handed_back_uses_up_no_try():
    assert after(FailureKind.WORKER_LOST, ["worker_lost"], is_release=True) is TrialState.WAITING
    assert after(FailureKind.WORKER_LOST, ["released", "preempted", "released"]) is TrialState.WAITING


def test_a_run_that_is_returned_again_and_again_fails_in_the_end():
    assert after(FailureKind.WORKER_LOST, ["released"] * 48 + ["oom"], is_release=True) is TrialState.WAITING
    assert after(FailureKind.WORKER_LOST, ["released"] * 49, is_release=True) is TrialState.FAILED
    preempted = JudgedEnd(1.0, failure=failure(FailureKind.WORKER_LOST), is_preemption=True)
    assert next_state("validation", preempted, ["released", "preempted"] * 24) is TrialState.WAITING
    assert next_state("validation", preempted, ["released", "preempted"] * 25) is TrialState.FAILED


def test_a_crash_of_the_profile_is_final():
    assert after(FailureKind.CRASH, purpose="model_summary") is TrialState.FAILED
    assert after(FailureKind.SETUP, purpose="model_summary") is TrialState.WAITING


@pytest.mark.parametrize("purpose", ["model_summary", "validation"])
def test_the_reason_why_a_study_waits_survives_two_restarts_of_the_worker(purpose):
    assert after(FailureKind.WORKER_LOST, ["worker_lost"], purpose) is TrialState.WAITING
    assert after(FailureKind.WORKER_LOST, ["worker_lost"] * 2, purpose) is TrialState.FAILED


def test_an_end_near_the_edge_of_memory_counts_when_it_happens_twice():
    ended = JudgedEnd(1.0, failure=failure(FailureKind.OOM))
    assert next_state("search", ended, [], might_fit=True) is TrialState.WAITING
    assert next_state("search", ended, ["oom"], might_fit=True) is TrialState.INFEASIBLE
    assert next_state("search", ended, [], might_fit=False) is TrialState.INFEASIBLE
