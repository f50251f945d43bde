"""Finding about a rank that used more memory than its limit: the contents of its memory, and the change of a knob that
is predicted to fit."""

from collections.abc import Iterator

from shardtune.api_schemas.trials.diagnosis import Finding, MemoryMoment
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.rule import Evidence, Remedy, describe_change, finding_in_words
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial


def out_of_memory(facts: Facts) -> Finding | None:
    """Finding about the rank that used the most memory, where it exceeded a declared limit; None otherwise."""
    moment = facts.diagnosis.recorded.memory if facts.diagnosis.recorded is not None else None
    if moment is None or moment.limit_bytes is None or moment.bytes <= moment.limit_bytes:
        return None
    evidence = Evidence("out_of_memory", moment.describe(), moment.bytes / moment.limit_bytes, 1.0)
    if facts.trial is None:
        return finding_in_words(evidence, "smaller micro batches, checkpointing, or more sharding", 0.0)
    best = max(_fitting_changes(facts.trial, moment), key=lambda remedy: remedy.gain, default=None)
    if best is None:
        return finding_in_words(evidence, "no change of one knob is predicted to fit", 0.0)
    return finding_in_words(evidence, describe_change(facts.trial, best.knobs), 0.0).model_copy(
        update={"knobs": best.knobs}
    )


def _fitting_changes(trial: TracedTrial, moment: MemoryMoment) -> Iterator[Remedy]:
    """Yield changes of knobs with which the configuration is predicted to fit in memory; `gain` is the predicted speed
    with the change."""
    if trial.predict is None or moment.limit_bytes is None:
        return
    try:
        now_gib = trial.predict(trial.config).memory.allocated_gib
    except ValueError:
        return
    for knobs in trial.neighbours():
        changed = trial.with_knobs(knobs)
        if changed is None or not trial.admits(knobs):
            continue
        prediction = trial.predict(changed)
        # The ratio of two predictions, applied to the measured peak, cancels the predictor's common error.
        if now_gib and prediction.memory.allocated_gib / now_gib * moment.peak_bytes <= moment.limit_bytes:
            yield Remedy(knobs, prediction.speed.tokens_per_s_per_gpu if prediction.speed is not None else 0.0)
