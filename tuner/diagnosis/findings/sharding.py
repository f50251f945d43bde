"""What is moved that need not be: parameters gathered twice, gradients reduced too often, bytes over a slow link."""

from collections.abc import Iterator

from shardtune.api_schemas.trials.diagnosis import Finding
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.rule import Remedy, Seen, answered, best_of, in_words
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial

_GATHERS = 0.20
_REDUCTIONS = 0.05
_TRANSFERS = 0.40
_OF_THE_LINK = 0.5
"""Of the speed that was measured on the same link."""


def all_gathers_dominate(facts: Facts) -> Finding | None:
    """Parameters are gathered with nothing beside it, and could be kept, or be sharded over fewer ranks."""
    share = facts.share(facts.parameters.exposed_s)
    if share < _GATHERS:
        return None
    evidence = f"all-gathers of parameters ({facts.parameters.calls:.0f} a step) that nothing hides take {share:.0%} of the step"
    words = (
        "keep parameters after forward (reshard_after_forward=False, SHARD_GRAD_OP, ZeRO-2), prefetch them earlier, or shard "
        "within a host only (HSDP)"
    )
    changes = () if facts.trial is None else _gathering_less(facts, facts.trial)
    return answered(facts, Seen("all_gathers_dominate", evidence, share, _GATHERS), changes, words, share / 2)


def reduces_every_micro_batch(facts: Facts) -> Finding | None:
    """Gradients are reduced after every micro batch, although the optimizer needs their sum only."""
    trial = facts.trial
    if trial is None or trial.accumulation == 1 or trial.config.strategy.sync_policy != "every":
        return None
    share = facts.share(facts.gradients.exposed_s)
    if share < _REDUCTIONS:
        return None
    evidence = f"gradients are reduced in each of {trial.accumulation} micro batches, which nothing hides for {share:.0%} of the step"
    seen = Seen("reduces_every_micro_batch", evidence, share, _REDUCTIONS)
    return answered(facts, seen, _reducing_once(facts, trial), "", 0.0)


def network_limits(facts: Facts) -> Finding | None:
    """Bytes, not calls, fill much of the step, with nothing beside them."""
    some = [one for one in (facts.gradients, facts.parameters) if one.calls]
    share = facts.share(sum(max(0.0, one.exposed_s - one.calls * (facts.call_s(one) or 0.0)) for one in some))
    speed = max((one.bytes_per_s or 0.0 for one in some), default=0.0)
    if share < _TRANSFERS or not speed:
        return None
    if facts.trial is not None and best_of(facts.trial, _moving_less(facts, facts.trial)) is not None:
        return None  # Knobs that move less have rules of their own.
    nominal = facts.link_bytes_per_s
    if nominal is not None and speed > _OF_THE_LINK * nominal and share < 2 * _TRANSFERS:
        return None
    evidence = f"transfers at {speed / 1e9:.2f} GB/s that nothing hides take {share:.0%} of the step"
    if nominal is not None:
        evidence += f"; the link gave {nominal / 1e9:.2f} GB/s when it was measured ({speed / nominal:.0%} of that now)"
    words = (
        "look at the link and what else uses it (expected of one "
        + ("twice as fast" if nominal is None else "as fast as measured")
        + "); fewer bytes: reductions in bfloat16, a larger global batch, sharding within a host only"
    )
    gain = share / 2 if nominal is None else share * max(0.0, 1 - speed / nominal)
    return in_words(Seen("network_limits", evidence, share, _TRANSFERS), words, gain)


def _moving_less(facts: Facts, trial: TracedTrial) -> Iterator[Remedy]:
    yield from _gathering_less(facts, trial)
    yield from _reducing_once(facts, trial)


def _reducing_once(facts: Facts, trial: TracedTrial) -> Iterator[Remedy]:
    saved = facts.share(facts.gradients.exposed_s) * (1 - 1 / trial.accumulation)
    if trial.accumulation > 1 and trial.config.strategy.sync_policy == "every":
        yield Remedy({"grad_sync": "last"}, saved)
        yield Remedy({"stage": 1}, saved)


def _gathering_less(facts: Facts, trial: TracedTrial) -> Iterator[Remedy]:
    """Ways to gather less often, or over fewer ranks, with what is expected of each."""
    share, passes = facts.share(facts.parameters.exposed_s), trial.accumulation
    kept = {"FULL_SHARD": "SHARD_GRAD_OP", "HYBRID_SHARD": "_HYBRID_SHARD_ZERO2"}
    if (strategy := trial.value("sharding_strategy")) in kept:
        yield Remedy({"sharding_strategy": kept[str(strategy)]}, share / 2)
    if trial.value("reshard_after_forward") not in (None, False):
        yield Remedy({"reshard_after_forward": False}, share / 2)
    if trial.value("stage") == 3:
        once = share * (1 - 1 / (2 * passes))
        yield Remedy({"stage": 2}, once)
        if trial.value("stage3_max_reuse_distance") == 0:
            yield Remedy({"stage3_max_reuse_distance": max(trial.numbers("stage3_max_reuse_distance"))}, share / 2)
    yield from _smaller_groups(facts, trial, share)


def _smaller_groups(facts: Facts, trial: TracedTrial, share: float) -> Iterator[Remedy]:
    """Of FSDP2, down to whole copies: then gradients are all-reduced, which moves twice what scattering them does."""
    now, world = int(trial.value("dp_shard") or 1), trial.cluster.world_size
    reduced = facts.share(facts.gradients.exposed_s)
    if trial.config.backend != "fsdp2":
        return
    for size in trial.numbers("dp_shard"):
        if size < now:
            left = (size - 1) / size / ((now - 1) / now)
            yield Remedy({"dp_shard": size, "dp_replicate": world // size}, (share - reduced) * (1 - left))
