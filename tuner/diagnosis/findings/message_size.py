"""Findings about the sizes of collective messages: many small ones or few large ones, as buckets and parameter units
determine."""

from collections.abc import Iterable, Iterator
from math import ceil

from shardtune.api_schemas.base import DTYPE_BYTES
from shardtune.api_schemas.trials.diagnosis import Finding
from shardtune.tuner.diagnosis.findings.facts import MIB, Exchange, Facts
from shardtune.tuner.diagnosis.findings.rule import Evidence, Remedy, finding_with_change
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial

_SMALL = MIB
"""Bytes of a message below which the fixed cost of a collective call matters."""
_MANY = 8
"""Number of collective calls per step below which merging calls saves little, unless nothing overlaps with them for
much of the step."""
_EXPOSED_CALLS = 0.15
"""Fraction of the step during which nothing overlaps with small calls, above which merging even a few calls is worth a
finding."""
_MERGING_SAVES = 0.05
# The smallest bucket that reaches it uses less memory and overlaps more.
_ENOUGH = 0.8
"""Fraction of the largest bucket's saving that a smaller bucket must reach to be suggested instead."""
_BUCKET = 25 * MIB
"""Bytes of torch's default gradient bucket (DistributedDataParallel)."""
_FEW = 2
_LARGE = 4 * MIB
_NOT_HIDDEN = 0.15
_OVERLAPS = 0.25
_BACKWARD = 0.6
"""Fraction of computation time that the backward pass takes; gradient reductions can overlap only with this part."""
# CPU ranks move faster messages with the same cores that compute, so overlapping them gains nothing.
_SLOWER_THAN_COPIES = 5e8
"""Bytes per second of a link up to which CPU ranks gain from overlapping communication with computation. On faster
links the same cores are busy with the messages."""


def buckets_too_small(facts: Facts) -> Finding | None:
    """Finding that many gradient reductions spend their time on the fixed cost of calls rather than on bytes, because
    gradient buckets are too small; None otherwise."""
    reduced = facts.gradients
    saved = _merging_gain(facts, reduced, _BUCKET)
    if saved < _MERGING_SAVES:
        return None
    evidence = Evidence(
        "buckets_too_small", _describe_calls(reduced, "reductions of gradients", facts), saved, _MERGING_SAVES
    )
    changes = () if facts.trial is None else _larger_buckets(facts, facts.trial, reduced)
    return finding_with_change(
        facts, evidence, changes, "larger buckets (DDP bucket_cap_mb, ZeRO reduce_bucket_size)", saved
    )


def units_too_small(facts: Facts) -> Finding | None:
    """Finding that many all-gathers spend their time on the fixed cost of calls, because parameters are wrapped in
    units that are too small; None otherwise."""
    gathered = facts.parameters
    saved = _merging_gain(facts, gathered, _BUCKET)
    if saved < _MERGING_SAVES:
        return None
    evidence = Evidence(
        "units_too_small", _describe_calls(gathered, "all-gathers of parameters", facts), saved, _MERGING_SAVES
    )
    changes = () if facts.trial is None else _larger_units(facts, facts.trial)
    words = "wrap whole blocks, or several of them, as a unit; larger gather and prefetch buckets (ZeRO)"
    return finding_with_change(facts, evidence, changes, words, saved)


def buckets_too_large(facts: Facts) -> Finding | None:
    """Finding that one or two reductions send all gradients at the end of backward, with no computation left to overlap
    with; None otherwise."""
    reduced, message = facts.gradients, facts.gradients.message_bytes
    exposed = facts.step_fraction(reduced.exposed_s)
    passes = 1 if facts.trial is None or facts.trial.config.strategy.sync_policy == "last" else facts.trial.accumulation
    if message is None or message < _LARGE or reduced.calls > _FEW * passes or exposed < _NOT_HIDDEN:
        return None
    if (facts.diagnosis.overlap or 0.0) > _OVERLAPS or not _could_overlap(facts, reduced):
        return None
    text = (
        f"gradients are reduced in {reduced.calls:.0f} messages of {message / MIB:.1f} MiB a step, which are "
        f"exposed for {exposed:.0%} of the step"
    )
    hidden = min(exposed, _BACKWARD * facts.step_fraction(facts.diagnosis.parts.compute_s))
    evidence = Evidence("buckets_too_large", text, exposed, _NOT_HIDDEN)
    changes = () if facts.trial is None else _smaller_buckets(facts.trial, message, hidden)
    return finding_with_change(
        facts, evidence, changes, "smaller buckets, so that reducing begins while backward computes", hidden / 2
    )


def units_too_large(facts: Facts) -> Finding | None:
    """Finding that one or two all-gathers fetch all parameters, with no computation left to overlap with; None
    otherwise."""
    gathered, message = facts.parameters, facts.parameters.message_bytes
    exposed = facts.step_fraction(gathered.exposed_s)
    passes = 2 * (facts.trial.accumulation if facts.trial is not None else 1)
    # CPU ranks overlap no gathers at all, so smaller units would not help them.
    if facts.diagnosis.device == "cpu" or message is None or message < _LARGE or exposed < _NOT_HIDDEN:
        return None
    if gathered.calls > _FEW * passes or (facts.diagnosis.overlap or 0.0) > _OVERLAPS:
        return None
    text = (
        f"parameters are gathered in {gathered.calls:.0f} calls of {message / MIB:.0f} MiB a step, which are exposed for "
        f"{exposed:.0%} of the step"
    )
    evidence = Evidence("units_too_large", text, exposed, _NOT_HIDDEN)
    trial, now = facts.trial, 1 if facts.trial is None else int(facts.trial.value("blocks_per_unit") or 1)
    smaller = () if trial is None else (n for n in trial.numbers("blocks_per_unit") if n < now)
    changes = (Remedy({"blocks_per_unit": n}, exposed * (1 - n / now) / 2) for n in smaller)
    return finding_with_change(
        facts, evidence, changes, "a unit for each block (auto-wrap policy), so that gathers overlap", exposed / 2
    )


def _merging_gain(facts: Facts, exchange: Exchange, bucket: int) -> float:
    """Fraction of the step that would be saved if collectives sent messages as large as the bucket."""
    message = exchange.message_bytes
    if message is None or message >= _SMALL or exchange.bytes is None:
        return 0.0
    if exchange.calls < _MANY and facts.step_fraction(exchange.exposed_s) < _EXPOSED_CALLS:
        return 0.0
    return facts.merging_gain(exchange, ceil(exchange.bytes / bucket))


def _describe_calls(exchange: Exchange, purpose: str, facts: Facts) -> str:
    call_s = facts.call_s(exchange)
    assert exchange.message_bytes is not None and call_s is not None
    return (
        f"{exchange.calls:.0f} {purpose} a step carry {exchange.message_bytes / 1024:,.0f} KiB each, and a call takes "
        f"{1e6 * call_s:,.0f} µs more than its bytes need"
    )


def _larger_buckets(facts: Facts, trial: TracedTrial, reduced: Exchange) -> Iterator[Remedy]:
    element = DTYPE_BYTES[trial.workload.precision.reduce_dtype]
    passes = 1 if trial.config.strategy.sync_policy == "last" else trial.accumulation
    for knob, unit in (("bucket_cap_mb", MIB), ("reduce_bucket_size", element)):
        rising = [
            Remedy({knob: size}, facts.merging_gain(reduced, max(passes, (reduced.bytes or 0) / (size * unit))))
            for size in trial.numbers(knob)
        ]
        largest_gain = max((remedy.gain for remedy in rising), default=0.0)
        yield from _first(remedy for remedy in rising if remedy.gain >= _ENOUGH * largest_gain > 0)


def _smaller_buckets(trial: TracedTrial, message: float, hidden: float) -> Iterator[Remedy]:
    """Yield changes to smaller gradient buckets, at most a third as large as the messages that were traced."""
    for size in trial.numbers("bucket_cap_mb"):
        # With fewer than three buckets the last one is most of the message.
        if size * MIB <= message / 3:
            yield Remedy({"bucket_cap_mb": size}, hidden * (1 - size * MIB / message))


def _larger_units(facts: Facts, trial: TracedTrial) -> Iterator[Remedy]:
    """Yield changes to larger parameter units and larger gather buckets; FSDP's gradient reductions use the same units
    as its gathers."""
    gathered, reduced = facts.parameters, facts.gradients
    current = int(trial.value("blocks_per_unit") or 1)
    for count in trial.numbers("blocks_per_unit"):
        if count > current:
            fewer = [facts.merging_gain(exchange, exchange.calls * current / count) for exchange in (gathered, reduced)]
            yield Remedy({"blocks_per_unit": count}, sum(fewer))
    element = DTYPE_BYTES[trial.workload.precision.weights_dtype]
    for knob in ("allgather_bucket_size", "stage3_prefetch_bucket_size"):
        for size in trial.numbers(knob):
            if size > int(trial.value(knob) or 0):
                calls = max(1.0, (gathered.bytes or 0) / (size * element))
                yield Remedy({knob: size}, facts.merging_gain(gathered, calls))


def _first(remedies: Iterable[Remedy]) -> list[Remedy]:
    return [next(iter(remedies))] if (remedies := list(remedies)) else []


def _could_overlap(facts: Facts, reduced: Exchange) -> bool:
    """Whether gradient reductions could run at the same time as backward on this device."""
    if facts.diagnosis.device == "cuda":
        return True
    # CPU ranks gain only from messages that leave the cores idle, and only under DDP: other backends' calls block.
    speed = reduced.bytes_per_s
    is_ddp = facts.trial is None or facts.trial.config.backend == "ddp"
    return is_ddp and speed is not None and speed < _SLOWER_THAN_COPIES
