"""Policy on fingerprints (hardware and software versions): which differences between two fingerprints count, and with
which effect.

An unknown value (None) in either fingerprint is no difference: a release that records more fields makes no measurement
stale.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from shardtune.api_schemas.machines.fingerprints import Effect, FieldChange
from shardtune.api_schemas.machines.hardware import Fingerprint, bandwidth_band
from shardtune.api_schemas.training.environment_settings import by_name, setting_of

UNSET = "unset"
"""Placeholder for the value of an environment variable that is not set."""
Judge = Callable[[Any, Any], Effect | None]
"""Function that returns how a difference between two known values of a fingerprint's field affects measurements (stale,
or lower confidence); None for no effect."""


class Rule(NamedTuple):
    """Rule on one field of a fingerprint (hardware and software versions): the effect of a difference, and the machines
    to which the field matters."""

    judge: Judge
    reason: str
    spans_nodes: bool = False
    """Whether the field matters only to trials over several nodes; on one node a difference lowers the confidence at
    most."""
    needs_gpu: bool = False
    """Whether the field matters only to GPUs; with CPU ranks a difference lowers the confidence at most."""
    is_host: bool = False
    """Whether the field matters only to CPU ranks; with GPUs a difference lowers the confidence at most."""


def _exactly(effect: Effect) -> Judge:
    return lambda was, now: effect if was != now else None


def _series(was: str, now: str) -> Effect | None:
    """Effect of a difference between two software versions on a measurement: stale where one of the first two numbers
    differs; None for equal versions."""
    if was == now:
        return None
    is_same_series = re.findall(r"\d+", was)[:2] == re.findall(r"\d+", now)[:2]
    return Effect.CONFIDENCE if is_same_series else Effect.STALE


def _by_more_than(stale: float, confidence: float) -> Judge:
    """Return a function that compares two amounts and returns the effect of their difference, which depends on the
    difference as a fraction of the larger amount."""

    def judge(was: float, now: float) -> Effect | None:
        difference = abs(was - now) / max(was, now)
        return Effect.STALE if difference > stale else Effect.CONFIDENCE if difference > confidence else None

    return judge


def _bands(was: float, now: float) -> Effect | None:
    # Two measurements of one link may fall into neighbouring bands.
    return Effect.STALE if abs(bandwidth_band(was) - bandwidth_band(now)) > 1 else None


_STALE = _exactly(Effect.STALE)

POLICY: Mapping[str, Rule] = {
    "device": Rule(_STALE, "other hardware"),
    "gpu": Rule(_STALE, "other hardware"),
    "gpu_count": Rule(_STALE, "other GPUs share the links, the host and the power"),
    "nodes": Rule(_STALE, "other nodes share the network"),
    "gpu_memory_gib": Rule(_by_more_than(0.02, 0.001), "what fits; drivers reserve a little more or less"),
    "gpu_links": Rule(_STALE, "collectives take other ways"),
    "pcie_gb_per_s": Rule(_STALE, "offloading and traffic between GPUs without NVLink"),
    "sm_clock_mhz": Rule(_by_more_than(0.01, 0.0), "the ratio of computation to communication"),
    "memory_clock_mhz": Rule(_by_more_than(0.01, 0.0), "the ratio of memory traffic to computation"),
    "power_limit_w": Rule(_by_more_than(0.02, 0.0), "clocks under load"),
    "driver": Rule(_STALE, "scheduling, memory management and transfers"),
    "cuda": Rule(_STALE, "kernels and allocators"),
    "nccl": Rule(_STALE, "collectives: their algorithms, buffers and overlap"),
    "torch": Rule(_STALE, "the backends themselves"),
    "deepspeed": Rule(_STALE, "a backend itself"),
    "transformers": Rule(_STALE, "the model's code"),
    "python": Rule(_series, "launch times; a patch release changes nothing that is measured"),
    "kernel": Rule(_series, "scheduling and networking; a patch release hardly changes them"),
    "cpu": Rule(_STALE, "launch times, offloading, CPU ranks"),
    "cpu_count": Rule(_STALE, "the ranks' threads", is_host=True),
    "cpu_topology": Rule(_STALE, "which rank is near which memory", is_host=True),
    "cpu_max_mhz": Rule(_by_more_than(0.01, 0.0), "the ranks' speed", is_host=True),
    "host_memory_gib": Rule(_by_more_than(0.1, 0.02), "what fits when offloading; the kernel keeps some for itself"),
    "nics": Rule(_STALE, "traffic between nodes", spans_nodes=True),
    "intra_node_gb_per_s": Rule(_bands, "collectives; between CPU ranks it is a matter of load", needs_gpu=True),
    "inter_node_gb_per_s": Rule(_bands, "collectives between nodes", spans_nodes=True),
    "environment": Rule(_STALE, "allocators, collectives, threads: each variable counts by itself"),
    "native_dtypes": Rule(_STALE, "which matrix products have units of their own, and which are emulated"),
}
"""Rule for each field of a fingerprint. `version` and `overridden` have no rule because they describe the fingerprint's
record, not the machine."""


def changes(was: Fingerprint, now: Fingerprint, nodes: int = 1) -> tuple[FieldChange, ...]:
    """Differences between two fingerprints that matter for a tuning target on `nodes` nodes, in the order of the rules
    (`POLICY`)."""
    counted = []
    for field, before, after, rule in _compare_fields(was, now):
        effect = rule.judge(before, after)
        if effect is None:
            continue
        if _matters_less(rule, now, nodes):
            effect = Effect.CONFIDENCE
        counted.append(FieldChange(field=field, was=before, now=after, effect=effect))
    return tuple(counted)


def sort_key(field: str) -> tuple[int, str]:
    """Sort key of a changed fingerprint field, in the order of the policy."""
    return list(POLICY).index(field.partition(".")[0]), field


def _compare_fields(was: Fingerprint, now: Fingerprint) -> Iterator[tuple[str, Any, Any, Rule]]:
    """Yield the fields known in both fingerprints with their values and rules; each environment variable is a field
    `environment.NAME`."""
    for field, rule in POLICY.items():
        before, after = getattr(was, field), getattr(now, field)
        # An older worker records fewer fields, which says nothing about its machine.
        if before is None or after is None:
            continue
        if field != "environment":
            yield field, before, after, rule
            continue
        old, new = by_name(before), by_name(after)
        for name in sorted({*old, *new}):
            setting = setting_of(name)
            device = setting.device if setting is not None else None
            # A variable of an allocator or a library matters only on the device that uses it.
            setting_rule = rule._replace(needs_gpu=device == "cuda", is_host=device == "cpu")
            yield f"environment.{name}", old.get(name, UNSET), new.get(name, UNSET), setting_rule


def stale_fields(was: Fingerprint, now: Fingerprint, nodes: int = 1) -> tuple[str, ...]:
    """Fields whose difference makes measurements on the two fingerprints incomparable; empty where they are
    comparable."""
    return tuple(change.field for change in changes(was, now, nodes) if change.effect == Effect.STALE)


def _matters_less(rule: Rule, now: Fingerprint, nodes: int) -> bool:
    is_cpu = now.device == "cpu"
    return (rule.spans_nodes and nodes == 1) or (rule.needs_gpu and is_cpu) or (rule.is_host and not is_cpu)
