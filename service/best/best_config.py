"""Make the answer of a recommendation: its configuration, freshness, confidence and differences."""

from datetime import datetime

from shardtune.api_schemas.machines.fingerprints import Freshness
from shardtune.api_schemas.recommendations.best import BestConfig, Confidence, ConfidenceLevel, Difference
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.db.tables.best import TuningTargetRow
from shardtune.service.best import target_distance


def is_too_busy(row: TuningTargetRow) -> bool:
    """Whether a recommendation comes from a study whose verdict is `too_busy`: its measurements were disturbed
    too much for an answer.
    """
    return row.recommended is not None and row.recommended.answer.result.verdict is Verdict.TOO_BUSY


def _confidence(row: TuningTargetRow, differences: tuple[Difference, ...]) -> Confidence:
    # Confidence is lowered by staleness and by distance; an unconfirmed gain only makes it medium.
    assert row.recommended is not None
    reasons = []
    is_low = False
    if row.freshness != Freshness.FRESH:
        is_low = True
        reasons.append(f"measured before a change of {', '.join(row.changed_fields) or 'the fingerprint'}")
    elif row.changed_fields:
        reasons.append(f"measured before a change of {', '.join(row.changed_fields)}, which should matter little")
    if differences:
        is_low = is_low or target_distance.is_far([item.field for item in differences])
        reasons.append("measured for another tuning target: " + ", ".join(item.field for item in differences))
    answer = row.recommended.answer
    comparison = answer.result.final_comparison
    if answer.result.too_busy is not None:
        is_low = True
        reasons.append(answer.result.too_busy.describe())
    elif comparison is not None and comparison.disturbed_counted_runs:
        runs = 2 * comparison.pairs
        reasons.append(f"other programs disturbed {comparison.disturbed_counted_runs} of the {runs} runs in pairs")
    if Verdict.CONFIRMED not in (answer.result.verdict, answer.renewed and answer.renewed.verdict):
        reasons.append("no configuration was confirmed to beat the baseline")
    return Confidence(
        level=ConfidenceLevel.LOW if is_low else ConfidenceLevel.MEDIUM if reasons else ConfidenceLevel.HIGH,
        reasons=tuple(reasons),
    )


def best_config_of(
    row: TuningTargetRow, differences: tuple[Difference, ...], now: datetime, asked_key: str | None = None
) -> BestConfig:
    """Body of the response that contains a tuning target's recommendation. `differences` says how that target (model,
    workload, cluster) differs from the requested one."""
    recommended = row.recommended
    assert recommended is not None
    answer = recommended.answer
    result = answer.result
    return BestConfig(
        target_key=row.target_key,
        asked_key=asked_key if asked_key != row.target_key else None,
        match="nearest" if differences else "exact",
        differences=differences,
        freshness=row.freshness,
        changed_fields=row.changed_fields,
        is_pinned=row.is_pinned,
        confidence=_confidence(row, differences),
        measured_at=recommended.created_at,
        age_s=max(0.0, (now - recommended.created_at).total_seconds()),
        recommendation_id=recommended.id,
        study_id=recommended.study_id,
        description=result.best.description,
        verdict=result.verdict,
        too_busy=result.too_busy,
        speedup=result.speedup,
        renewed=answer.renewed,
        best=result.best,
        baseline=result.baseline,
        model=answer.model,
        workload=answer.workload,
        cluster=answer.cluster,
        fingerprint=answer.fingerprint,
    )
