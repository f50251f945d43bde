"""Findings about ranks apart from communication: too few kernel launches, a late rank, waits for data, offloading,
recomputation."""

from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean

from shardtune.api_schemas.trials.diagnosis import Diagnosis, Finding
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.rule import Evidence, Remedy, finding_in_words, finding_with_change
from shardtune.tuner.diagnosis.findings.traced_trial import Knobs, TracedTrial

_HOST = 0.30
_MOST_TIMES = 8
"""Largest factor by which a finding may suggest to increase the micro batch, since one trace is little evidence for
more."""
_WAITS, _OF_ALL_WAITING, _OF_STEPS = 0.15, 0.75, 0.6
_DATA = 0.10
_OFFLOAD = 0.15
# Forward runs twice and backward takes two forwards; `selective` keeps results of matrix products.
_RECOMPUTED_BY_FULL = 1 / 4
_RECOMPUTED_BY_SELECTIVE = {"products": 1 / 12, "second_products": 1 / 8, "attention": 1 / 5}
"""Fraction of the computation time that activation checkpointing spends on recomputation."""
_RECOMPUTES = 0.05


def host_bound(facts: Facts) -> Finding | None:
    """Finding that during much of a step no rank has a kernel to run, because micro batches are too small or Python
    does too much; None otherwise."""
    fraction = facts.least_on_a_rank("host")
    if fraction < _HOST:
        return None
    evidence = f"for {fraction:.0%} of the step or more nothing is launched, on every rank"
    words = "larger micro batches with less accumulation; torch.compile; fewer synchronisations (.item(), prints)"
    changes = () if facts.trial is None else _remedies_for_launches(facts.trial, fraction)
    return finding_with_change(facts, Evidence("host_bound", evidence, fraction, _HOST), changes, words, fraction / 2)


def late_rank(facts: Facts) -> Finding | None:
    """Finding that one rank arrives last at collectives in most steps while no other program used its cores; None
    otherwise."""
    diagnosis, late = facts.diagnosis, facts.diagnosis.late_rank
    if late is None or late.share_of_waiting < _OF_ALL_WAITING or facts.disturbed is not None:
        return None
    excess_waits = _excess_waits(diagnosis, late.rank)
    late_steps = sum(wait >= _WAITS for wait in excess_waits)
    if late_steps < _OF_STEPS * len(excess_waits):
        return None
    # Ranks that take turns in waiting for each other are not late.
    own_s = fmean(step.parts.waiting_s for step in diagnosis.steps if step.rank == late.rank)
    fraction = facts.step_fraction(late.others_wait_s - own_s)
    if fraction < _WAITS:
        return None
    evidence = (
        f"the others wait {1e3 * late.others_wait_s:,.1f} ms a step for rank {late.rank} ({fraction:.0%} of the step more than "
        f"that rank waits itself), as long in {late_steps} of {len(excess_waits)} steps"
    )
    remedy = f"look at rank {late.rank}: its device, its host, its share of the data; no knob changes it"
    return finding_in_words(Evidence("late_rank", evidence, fraction, _WAITS), remedy, fraction)


def _excess_waits(diagnosis: Diagnosis, late: int) -> list[float]:
    """Additional time that the other ranks wait in each step, compared with the waiting of the rank `late`, as a
    fraction of the mean step time. A positive number means that this rank came late."""
    by_step: dict[int, dict[int, float]] = defaultdict(dict)
    for step in diagnosis.steps:
        by_step[step.step][step.rank] = step.parts.waiting_s
    return [
        (fmean(wait for rank, wait in waits.items() if rank != late) - waits[late]) / diagnosis.step_s
        for waits in by_step.values()
        if late in waits and len(waits) > 1
    ]


def data_waits(facts: Facts) -> Finding | None:
    """Finding that ranks wait because the next batch of data is not loaded in time; None otherwise."""
    fraction = facts.step_fraction(facts.diagnosis.parts.data_s)
    if fraction < _DATA:
        return None
    evidence = Evidence("data_waits", f"{fraction:.0%} of the step waits for the next batch", fraction, _DATA)
    remedy = "more DataLoader workers, prefetch_factor, pin_memory, or batches that are made beforehand"
    return finding_in_words(evidence, remedy, fraction)


def offload_costs(facts: Facts) -> Finding | None:
    """Finding that model states are offloaded to the host and that copying and updating them there takes long; None
    otherwise."""
    parts, trial = facts.diagnosis.parts, facts.trial
    copies, optimizer = facts.step_fraction(parts.copies_s), facts.step_fraction(parts.optimizer_s)
    changes = () if trial is None else tuple(_remedies_without_offload(trial, copies + optimizer / 2))
    if trial is not None and not changes:
        return None
    fraction = copies if trial is None else copies + optimizer
    if fraction < _OFFLOAD or facts.diagnosis.device == "cpu":
        return None
    evidence = f"copies that nothing hides take {copies:.0%} of the step, the optimizer {optimizer:.0%}"
    words = "keep optimizer state and parameters on the device where they fit; else pinned memory, or a part of them"
    return finding_with_change(facts, Evidence("offload_costs", evidence, fraction, _OFFLOAD), changes, words, copies)


def checkpointed_without_need(facts: Facts) -> Finding | None:
    """Finding that activations are recomputed although they are predicted to fit in memory; None otherwise."""
    trial = facts.trial
    if trial is None or trial.config.activation_checkpointing == "none":
        return None
    mode, every, keeps = (
        trial.config.activation_checkpointing,
        trial.config.checkpoint_every,
        trial.config.selective_keeps,
    )
    recomputed = _RECOMPUTED_BY_FULL if mode == "full" else _RECOMPUTED_BY_SELECTIVE[keeps]
    fraction = facts.step_fraction(facts.diagnosis.parts.compute_s) * recomputed / every
    if fraction < _RECOMPUTES:
        return None
    evidence = (
        f"{mode} checkpointing computes forward twice, by its kind {fraction:.0%} of the step, and memory is not short"
    )
    # What is not checkpointed whole has no input to offload.
    on_device: Knobs = {"activation_offload": False} if trial.config.activation_offload else {}
    by_default: Knobs = {"selective_keeps": "products"} if keeps != "products" else {}
    changes = [Remedy({"activation_checkpointing": "none", "checkpoint_every": 1, **on_device, **by_default}, fraction)]
    changes += [
        Remedy({"checkpoint_every": n}, fraction * (1 - every / n))
        for n in trial.numbers("checkpoint_every")
        if n > every
    ]
    if mode == "full":
        selective: Knobs = {"activation_checkpointing": "selective", "checkpoint_every": 1, **on_device}
        changes.append(Remedy(selective, fraction * (1 - _RECOMPUTED_BY_SELECTIVE["products"] / recomputed)))
    elif by_default:
        changes.append(Remedy(by_default, fraction * (1 - _RECOMPUTED_BY_SELECTIVE["products"] / recomputed)))
    return finding_with_change(
        facts, Evidence("checkpointed_without_need", evidence, fraction, _RECOMPUTES), changes, "", fraction
    )


def _remedies_for_launches(trial: TracedTrial, fraction: float) -> Iterator[Remedy]:
    current = trial.config.micro_batch
    for size in trial.numbers("micro_batch"):
        if current < size <= _MOST_TIMES * current:
            yield Remedy({"micro_batch": size}, fraction * (1 - current / size))
    if True in trial.values("compile"):
        yield Remedy({"compile": True}, fraction / 2)


def _remedies_without_offload(trial: TracedTrial, gain: float) -> Iterator[Remedy]:
    if trial.value("offload_optimizer") == "cpu":
        if trial.value("offload_param") == "cpu":
            yield Remedy({"offload_optimizer": "none", "offload_param": "none"}, gain)
        yield Remedy({"offload_optimizer": "none"}, 0.9 * gain)
    if trial.value("cpu_offload"):
        yield Remedy({"cpu_offload": False}, gain)
    if trial.value("activation_offload"):
        yield Remedy({"activation_offload": False}, gain)
