"""Reject recommendations of studies whose machine was too busy for an answer, with a remedy that works for the study."""

from math import ceil

from shardtune.api_schemas.recommendations.best import BestConfig, ConfidenceLevel
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.db.queries import studies
from shardtune.service.http.errors import Conflict
from shardtune.service.process.context import Context
from shardtune.service.studies import extension


def reject_too_busy(context: Context, best_config: BestConfig, lowest: ConfidenceLevel) -> BestConfig:
    """Return a recommendation, unless its machine was too busy for an answer and the request asks for more than low
    confidence.

    Raises:
        Conflict: the machine was too busy, and `lowest` (minimum confidence) is not low.
    """
    if best_config.verdict is not Verdict.TOO_BUSY or lowest is ConfidenceLevel.LOW:
        return best_config
    raise Conflict(
        "too_busy",
        f"study {best_config.study_id} of this tuning target could not answer, because its machine was too busy; "
        f"{_remedy(context, best_config)}, or accept its recommendation with lowest_confidence=low",
    )


def _remedy(context: Context, best_config: BestConfig) -> str:
    if _pairs_may_decide(context, best_config):
        return "extend the study on a quiet machine (add_pairs, wait_for_quiet_s)"
    return "run the study again on a quiet machine (:clone, wait_for_quiet_s)"


def _pairs_may_decide(context: Context, best_config: BestConfig) -> bool:
    busy = best_config.too_busy
    # Where the search was disturbed, more pairs of the candidates that it chose decide nothing.
    if busy is None or busy.rests_on == "search":
        return False
    with context.db.read() as session:
        study = studies.get(session, best_config.study_id)
        return study is not None and extension.takes_pairs(study, ceil(busy.missing_runs / 2))
