"""All rules over one diagnosis, ordered by what their remedies are expected to save."""

from shardtune.api_schemas.trials.diagnosis import Diagnosis, Finding
from shardtune.tuner.diagnosis.findings import compute_bound, memory, message_size, sharding
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.rule import Rule
from shardtune.tuner.diagnosis.findings.traced_trial import TracedTrial

RULES: tuple[Rule, ...] = (
    compute_bound.late_rank,
    compute_bound.data_waits,
    sharding.reduces_every_micro_batch,
    message_size.buckets_too_small,
    message_size.units_too_small,
    sharding.all_gathers_dominate,
    sharding.network_limits,
    message_size.buckets_too_large,
    message_size.units_too_large,
    compute_bound.host_bound,
    compute_bound.offload_costs,
    compute_bound.checkpointed_without_need,
)
LEAST_GAIN = 0.03
"""Share of a step: less is not worth a trial."""


def findings(
    found: Diagnosis, trial: TracedTrial | None = None, link_bytes_per_s: float | None = None
) -> tuple[Finding, ...]:
    """What the rules see: first what does not fit, then by the gain that is expected."""
    facts = Facts(found, trial, link_bytes_per_s)
    full = memory.out_of_memory(facts)
    seen = [one for rule in RULES if (one := rule(facts)) is not None and one.expected_gain >= LEAST_GAIN]
    ordered = sorted(seen, key=lambda one: -one.expected_gain)
    return (*([full] if full is not None else []), *ordered)
