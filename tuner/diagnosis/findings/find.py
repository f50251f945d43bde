"""Findings of all rules on one diagnosis, ordered by the step time that their remedies are expected to save."""

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
"""Smallest expected gain for which a finding suggests a trial, as a fraction of a step."""


def find_all(
    diagnosis: Diagnosis, trial: TracedTrial | None = None, link_bytes_per_s: float | None = None
) -> tuple[Finding, ...]:
    """Findings of all rules on one diagnosis: a memory overflow comes first, then the others by expected gain."""
    facts = Facts(diagnosis, trial, link_bytes_per_s)
    # Before all others, whatever their gain: a configuration that does not fit has no speed to improve.
    overflow = memory.out_of_memory(facts)
    results = (rule(facts) for rule in RULES)
    worthwhile = [finding for finding in results if finding is not None and finding.expected_gain >= LEAST_GAIN]
    ordered = sorted(worthwhile, key=lambda finding: -finding.expected_gain)
    return (*([overflow] if overflow is not None else []), *ordered)
