"""Collectives that are too many and small, or too few and large: buckets, and the units that parameters are gathered in."""

from collections.abc import Iterable, Iterator
from math import ceil

from shardtune.api_schemas.base import DTYPE_BYTES
from shardtune.api_schemas.trials.diagnosis import Finding
from shardtune.tuner.diagnosis.findings.facts import MIB, Exchange, Facts
from shardtune.tuner.diagnosis.findings.rule import Remedy, Seen, answered
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial

_SMALL = MIB
"""Bytes of a message, below which a call's own time counts."""
_MANY = 8
"""Calls a step; fewer have little to merge."""
_MERGING_SAVES = 0.05
_ENOUGH = 0.8
"""Of what the largest bucket would save: the smallest that reaches it holds less, and overlaps more."""
_BUCKET = 25 * MIB
"""torch's own (DistributedDataParallel)."""
_FEW = 2
_LARGE = 4 * MIB
_NOT_HIDDEN = 0.15
_OVERLAPS = 0.25
_BACKWARD = 0.6
"""Of computing, beside which reductions may run."""
_SLOWER_THAN_COPIES = 5e8
"""Bytes per second. CPU ranks move faster messages with the same cores that compute: to overlap them gains nothing."""


def buckets_too_small(facts: Facts) -> Finding | None:
    """Many reductions that take their calls' time and not that of their bytes."""
    reduced = facts.gradients
    saved = _merging(facts, reduced, _BUCKET)
    if saved < _MERGING_SAVES:
        return None
    seen = Seen("buckets_too_small", _many(reduced, "reductions of gradients", facts), saved, _MERGING_SAVES)
    changes = () if facts.trial is None else _larger_buckets(facts, facts.trial, reduced)
    return answered(facts, seen, changes, "larger buckets (DDP bucket_cap_mb, ZeRO reduce_bucket_size)", saved)


def units_too_small(facts: Facts) -> Finding | None:
    """Many all-gathers that take their calls' time: parameters are wrapped in units that are too small."""
    gathered = facts.parameters
    saved = _merging(facts, gathered, _BUCKET)
    if saved < _MERGING_SAVES:
        return None
    seen = Seen("units_too_small", _many(gathered, "all-gathers of parameters", facts), saved, _MERGING_SAVES)
    changes = () if facts.trial is None else _larger_units(facts, facts.trial)
    words = "wrap whole blocks, or several of them, as a unit; larger gather and prefetch buckets (ZeRO)"
    return answered(facts, seen, changes, words, saved)


def buckets_too_large(facts: Facts) -> Finding | None:
    """All gradients in one or two reductions at the end of backward, beside which nothing is left to compute."""
    reduced, message = facts.gradients, facts.gradients.message_bytes
    exposed = facts.share(reduced.exposed_s)
    passes = 1 if facts.trial is None or facts.trial.config.strategy.sync_policy == "last" else facts.trial.accumulation
    if message is None or message < _LARGE or reduced.calls > _FEW * passes or exposed < _NOT_HIDDEN:
        return None
    if (facts.found.overlap or 0.0) > _OVERLAPS or not _could_overlap(facts, reduced):
        return None
    evidence = (
        f"gradients are reduced in {reduced.calls:.0f} messages of {message / MIB:.1f} MiB a step; {exposed:.0%} of "
        "the step is reducing beside which nothing is computed"
    )
    hidden = min(exposed, _BACKWARD * facts.share(facts.found.parts.compute_s))
    seen = Seen("buckets_too_large", evidence, exposed, _NOT_HIDDEN)
    changes = () if facts.trial is None else _smaller_buckets(facts.trial, message, hidden)
    return answered(
        facts, seen, changes, "smaller buckets, so that reducing begins while backward computes", hidden / 2
    )


def units_too_large(facts: Facts) -> Finding | None:
    """All parameters in one or two gathers, beside which nothing is left to compute. CPU ranks overlap no gathers at all."""
    gathered, message = facts.parameters, facts.parameters.message_bytes
    exposed = facts.share(gathered.exposed_s)
    passes = 2 * (facts.trial.accumulation if facts.trial is not None else 1)
    if facts.found.device == "cpu" or message is None or message < _LARGE or exposed < _NOT_HIDDEN:
        return None
    if gathered.calls > _FEW * passes or (facts.found.overlap or 0.0) > _OVERLAPS:
        return None
    evidence = (
        f"parameters are gathered in {gathered.calls:.0f} calls of {message / MIB:.0f} MiB a step; beside them nothing is computed for "
        f"{exposed:.0%} of the step"
    )
    seen = Seen("units_too_large", evidence, exposed, _NOT_HIDDEN)
    trial, now = facts.trial, 1 if facts.trial is None else int(facts.trial.value("blocks_per_unit") or 1)
    smaller = () if trial is None else (n for n in trial.numbers("blocks_per_unit") if n < now)
    changes = (Remedy({"blocks_per_unit": n}, exposed * (1 - n / now) / 2) for n in smaller)
    return answered(
        facts, seen, changes, "a unit for each block (auto-wrap policy), so that gathers overlap", exposed / 2
    )


def _merging(facts: Facts, exchange: Exchange, bucket: int) -> float:
    """Share of the step that messages of a bucket's size would save."""
    message = exchange.message_bytes
    if message is None or message >= _SMALL or exchange.calls < _MANY or exchange.bytes is None:
        return 0.0
    return facts.merged_saves(exchange, ceil(exchange.bytes / bucket))


def _many(exchange: Exchange, what: str, facts: Facts) -> str:
    call_s = facts.call_s(exchange)
    assert exchange.message_bytes is not None and call_s is not None
    return (
        f"{exchange.calls:.0f} {what} a step carry {exchange.message_bytes / 1024:,.0f} KiB each, and a call takes "
        f"{1e6 * call_s:,.0f} µs more than its bytes need"
    )


def _larger_buckets(facts: Facts, trial: TracedTrial, reduced: Exchange) -> Iterator[Remedy]:
    element = DTYPE_BYTES[trial.workload.precision.reduce_dtype]
    passes = 1 if trial.config.strategy.sync_policy == "last" else trial.accumulation
    for knob, unit in (("bucket_cap_mb", MIB), ("reduce_bucket_size", element)):
        rising = [
            Remedy({knob: size}, facts.merged_saves(reduced, max(passes, (reduced.bytes or 0) / (size * unit))))
            for size in trial.numbers(knob)
        ]
        most = max((one.gain for one in rising), default=0.0)
        yield from _first(one for one in rising if one.gain >= _ENOUGH * most > 0)


def _smaller_buckets(trial: TracedTrial, message: float, hidden: float) -> Iterator[Remedy]:
    """Three buckets or more, else the last one is most of it."""
    for size in trial.numbers("bucket_cap_mb"):
        if size * MIB <= message / 3:
            yield Remedy({"bucket_cap_mb": size}, hidden * (1 - size * MIB / message))


def _larger_units(facts: Facts, trial: TracedTrial) -> Iterator[Remedy]:
    """Gathers and, of FSDP, reductions go with the units."""
    gathered, reduced = facts.parameters, facts.gradients
    now = int(trial.value("blocks_per_unit") or 1)
    for count in trial.numbers("blocks_per_unit"):
        if count > now:
            fewer = [facts.merged_saves(some, some.calls * now / count) for some in (gathered, reduced)]
            yield Remedy({"blocks_per_unit": count}, sum(fewer))
    element = DTYPE_BYTES[trial.workload.precision.weights_dtype]
    for knob in ("allgather_bucket_size", "stage3_prefetch_bucket_size"):
        for size in trial.numbers(knob):
            if size > int(trial.value(knob) or 0):
                calls = max(1.0, (gathered.bytes or 0) / (size * element))
                yield Remedy({knob: size}, facts.merged_saves(gathered, calls))


def _first(some: Iterable[Remedy]) -> list[Remedy]:
    return [next(iter(some))] if (some := list(some)) else []


def _could_overlap(facts: Facts, reduced: Exchange) -> bool:
    """On CPU ranks only what leaves the cores idle while it moves, and of DDP alone: the others' calls wait for their end."""
    if facts.found.device == "cuda":
        return True
    speed = reduced.bytes_per_s
    is_ddp = facts.trial is None or facts.trial.config.backend == "ddp"
    return is_ddp and speed is not None and speed < _SLOWER_THAN_COPIES
