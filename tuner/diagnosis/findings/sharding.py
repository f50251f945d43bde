"""Findings about avoidable communication: parameters gathered twice, gradients reduced too often, bytes over a slow
link."""

from collections.abc import Iterator

from shardtune.api_schemas.formatting import speed_in_words
from shardtune.api_schemas.trials.diagnosis import Finding
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.rule import Evidence, Remedy, best_of, finding_in_words, finding_with_change
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial

_GATHERS = 0.20
_REDUCTIONS = 0.05
_TRANSFERS = 0.40
_OF_THE_LINK = 0.5
"""Fraction of the link's undisturbed speed above which the network does not count as the cause of slow collectives."""


def all_gathers_dominate(facts: Facts) -> Finding | None:
    """Finding that gathers of parameters do not overlap with computation, and parameters could be kept or sharded over
    fewer ranks; None otherwise."""
    fraction = facts.step_fraction(facts.parameters.exposed_s)
    if fraction < _GATHERS:
        return None
    evidence = f"all-gathers of parameters ({facts.parameters.calls:.0f} a step) that nothing hides take {fraction:.0%} of the step"
    words = (
        "keep parameters after forward (reshard_after_forward=False, SHARD_GRAD_OP, ZeRO-2), prefetch them earlier, or shard "
        "within a host only (HSDP)"
    )
    changes = () if facts.trial is None else _remedies_for_gathers(facts, facts.trial)
    return finding_with_change(
        facts, Evidence("all_gathers_dominate", evidence, fraction, _GATHERS), changes, words, fraction / 2
    )


def reduces_every_micro_batch(facts: Facts) -> Finding | None:
    """Finding that gradients are reduced after every micro batch although the optimizer needs only their sum; None
    otherwise."""
    trial = facts.trial
    if trial is None or trial.accumulation == 1 or trial.config.strategy.sync_policy != "every":
        return None
    fraction = facts.step_fraction(facts.gradients.exposed_s)
    if fraction < _REDUCTIONS:
        return None
    text = f"gradients are reduced in each of {trial.accumulation} micro batches, which nothing hides for {fraction:.0%} of the step"
    evidence = Evidence("reduces_every_micro_batch", text, fraction, _REDUCTIONS)
    return finding_with_change(facts, evidence, _remedies_for_reductions(facts, trial), "", 0.0)


def network_limits(facts: Facts) -> Finding | None:
    """Finding that the network is slow, so that sending bytes takes much of the step without overlapping computation;
    None otherwise."""
    used = [exchange for exchange in (facts.gradients, facts.parameters) if exchange.calls]
    byte_times = (max(0.0, exchange.exposed_s - exchange.calls * (facts.call_s(exchange) or 0.0)) for exchange in used)
    fraction = facts.step_fraction(sum(byte_times))
    speed = max((exchange.bytes_per_s or 0.0 for exchange in used), default=0.0)
    if fraction < _TRANSFERS or not speed:
        return None
    if facts.trial is not None and best_of(facts.trial, _remedies_for_bytes(facts, facts.trial)) is not None:
        return None  # Knobs that move less have rules of their own.
    nominal = facts.link_bytes_per_s
    if nominal is not None and speed > _OF_THE_LINK * nominal and fraction < 2 * _TRANSFERS:
        return None
    evidence = f"transfers at {speed_in_words(speed)} that nothing hides take {fraction:.0%} of the step"
    if nominal is not None:
        evidence += (
            f"; the link gave {speed_in_words(nominal)} when it was measured ({speed / nominal:.0%} of that now)"
        )
    words = (
        "look at the link and what else uses it (expected of one "
        + ("twice as fast" if nominal is None else "as fast as measured")
        + "); fewer bytes: reductions in bfloat16, a larger global batch, sharding within a host only"
    )
    gain = fraction / 2 if nominal is None else fraction * max(0.0, 1 - speed / nominal)
    return finding_in_words(Evidence("network_limits", evidence, fraction, _TRANSFERS), words, gain)


def _remedies_for_bytes(facts: Facts, trial: TracedTrial) -> Iterator[Remedy]:
    yield from _remedies_for_gathers(facts, trial)
    yield from _remedies_for_reductions(facts, trial)


def _remedies_for_reductions(facts: Facts, trial: TracedTrial) -> Iterator[Remedy]:
    saved = facts.step_fraction(facts.gradients.exposed_s) * (1 - 1 / trial.accumulation)
    if trial.accumulation > 1 and trial.config.strategy.sync_policy == "every":
        yield Remedy({"grad_sync": "last"}, saved)
        yield Remedy({"stage": 1}, saved)


def _remedies_for_gathers(facts: Facts, trial: TracedTrial) -> Iterator[Remedy]:
    """Yield changes that gather parameters less often or over fewer ranks, with the expected gain of each."""
    share, passes = facts.step_fraction(facts.parameters.exposed_s), trial.accumulation
    keeping_strategies = {"FULL_SHARD": "SHARD_GRAD_OP", "HYBRID_SHARD": "_HYBRID_SHARD_ZERO2"}
    if (strategy := trial.value("sharding_strategy")) in keeping_strategies:
        yield Remedy({"sharding_strategy": keeping_strategies[str(strategy)]}, share / 2)
    if trial.value("reshard_after_forward") not in (None, False):
        yield Remedy({"reshard_after_forward": False}, share / 2)
    if trial.value("stage") == 3:
        once = share * (1 - 1 / (2 * passes))
        yield Remedy({"stage": 2}, once)
        if trial.value("stage3_max_reuse_distance") == 0:
            yield Remedy({"stage3_max_reuse_distance": max(trial.numbers("stage3_max_reuse_distance"))}, share / 2)
    yield from _smaller_groups(facts, trial, share)


def _smaller_groups(facts: Facts, trial: TracedTrial, exposed_fraction: float) -> Iterator[Remedy]:
    """Yield smaller shard groups of FSDP2, down to a whole copy on each rank."""
    current, world = int(trial.value("dp_shard") or 1), trial.cluster.world_size
    reduced = facts.step_fraction(facts.gradients.exposed_s)
    if trial.config.backend != "fsdp2":
        return
    for size in trial.numbers("dp_shard"):
        if size < current:
            # Gradients of replicas are all-reduced, which moves twice what scattering them does, so their exposed time
            # is deducted.
            traffic_left = (size - 1) / size / ((current - 1) / current)
            yield Remedy(
                {"dp_shard": size, "dp_replicate": world // size}, (exposed_fraction - reduced) * (1 - traffic_left)
            )
