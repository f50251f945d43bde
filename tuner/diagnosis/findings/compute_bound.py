"""What ranks do beside communicating: the host that launches too little, a late rank, data, offload, recomputation."""

from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean

from shardtune.api_schemas.trials.diagnosis import Diagnosis, Finding
from shardtune.tuner.diagnosis.findings.facts import Facts
from shardtune.tuner.diagnosis.findings.rule import Remedy, Seen, answered, in_words
from shardtune.tuner.diagnosis.findings.traced_trial import Knobs, TracedTrial

_HOST = 0.30
_MOST_TIMES = 8
"""A micro batch so many times larger is as far as one trace tells."""
_WAITS, _OF_ALL_WAITING, _OF_STEPS = 0.15, 0.75, 0.6
_DATA = 0.10
_OFFLOAD = 0.15
_RECOMPUTED = {"full": 1 / 4, "selective": 1 / 12}
"""Of computing with checkpointing: forward is done twice, backward takes two forwards; `selective` keeps the matrix products."""
_RECOMPUTES = 0.05


def host_bound(facts: Facts) -> Finding | None:
    """Every rank has nothing launched for much of a step: micro batches are too small, or Python does too much."""
    share = facts.least_on_a_rank("host")
    if share < _HOST:
        return None
    evidence = f"for {share:.0%} of the step or more nothing is launched, on every rank"
    words = "larger micro batches with less accumulation; torch.compile; fewer synchronisations (.item(), prints)"
    changes = () if facts.trial is None else _launching_less(facts.trial, share)
    return answered(facts, Seen("host_bound", evidence, share, _HOST), changes, words, share / 2)


def late_rank(facts: Facts) -> Finding | None:
    """One rank is the last to come in most steps, and nobody took its cores meanwhile."""
    found, late = facts.found, facts.found.late_rank
    if late is None or late.share_of_waiting < _OF_ALL_WAITING or facts.disturbed is not None:
        return None
    waits = _waited_for(found, late.rank)
    often = sum(wait >= _WAITS for wait in waits)
    if often < _OF_STEPS * len(waits):
        return None
    # Ranks that wait for each other by turns are none of them late.
    own_s = fmean(one.parts.waiting_s for one in found.steps if one.rank == late.rank)
    share = facts.share(late.others_wait_s - own_s)
    if share < _WAITS:
        return None
    evidence = (
        f"the others wait {1e3 * late.others_wait_s:,.1f} ms a step for rank {late.rank} ({share:.0%} of the step more than "
        f"that rank waits itself), as long in {often} of {len(waits)} steps"
    )
    remedy = f"look at rank {late.rank}: its device, its host, its share of the data; no knob changes it"
    return in_words(Seen("late_rank", evidence, share, _WAITS), remedy, share)


def _waited_for(found: Diagnosis, late: int) -> list[float]:
    """By steps: how much longer the other ranks wait than this one, as a share of the mean step."""
    by_step: dict[int, dict[int, float]] = defaultdict(dict)
    for one in found.steps:
        by_step[one.step][one.rank] = one.parts.waiting_s
    return [
        (fmean(wait for rank, wait in waits.items() if rank != late) - waits[late]) / found.step_s
        for waits in by_step.values()
        if late in waits and len(waits) > 1
    ]


def data_waits(facts: Facts) -> Finding | None:
    """The next batch is not there in time."""
    share = facts.share(facts.found.parts.data_s)
    if share < _DATA:
        return None
    seen = Seen("data_waits", f"{share:.0%} of the step waits for the next batch", share, _DATA)
    remedy = "more DataLoader workers, prefetch_factor, pin_memory, or batches that are made beforehand"
    return in_words(seen, remedy, share)


def offload_costs(facts: Facts) -> Finding | None:
    """Model states lie on the host, and copying them and updating them there takes long."""
    parts, trial = facts.found.parts, facts.trial
    copies, optimizer = facts.share(parts.copies_s), facts.share(parts.optimizer_s)
    changes = () if trial is None else tuple(_on_the_device(trial, copies + optimizer / 2))
    if trial is not None and not changes:
        return None
    share = copies if trial is None else copies + optimizer
    if share < _OFFLOAD or facts.found.device == "cpu":
        return None
    evidence = f"copies that nothing hides take {copies:.0%} of the step, the optimizer {optimizer:.0%}"
    words = "keep optimizer state and parameters on the device where they fit; else pinned memory, or a part of them"
    return answered(facts, Seen("offload_costs", evidence, share, _OFFLOAD), changes, words, copies)


def checkpointed_without_need(facts: Facts) -> Finding | None:
    """Activations are recomputed although they are predicted to fit."""
    trial = facts.trial
    if trial is None or trial.config.activation_checkpointing == "none":
        return None
    mode, every = trial.config.activation_checkpointing, trial.config.checkpoint_every
    share = facts.share(facts.found.parts.compute_s) * _RECOMPUTED[mode] / every
    if share < _RECOMPUTES:
        return None
    evidence = (
        f"{mode} checkpointing computes forward twice, by its kind {share:.0%} of the step, and memory is not short"
    )
    changes = [Remedy({"activation_checkpointing": "none", "checkpoint_every": 1}, share)]
    changes += [
        Remedy({"checkpoint_every": n}, share * (1 - every / n)) for n in trial.numbers("checkpoint_every") if n > every
    ]
    if mode == "full":
        selective: Knobs = {"activation_checkpointing": "selective", "checkpoint_every": 1}
        changes.append(Remedy(selective, share * (1 - _RECOMPUTED["selective"] / _RECOMPUTED["full"])))
    return answered(facts, Seen("checkpointed_without_need", evidence, share, _RECOMPUTES), changes, "", share)


def _launching_less(trial: TracedTrial, share: float) -> Iterator[Remedy]:
    now = trial.config.micro_batch
    for size in trial.numbers("micro_batch"):
        if now < size <= _MOST_TIMES * now:
            yield Remedy({"micro_batch": size}, share * (1 - now / size))
    if True in trial.values("compile"):
        yield Remedy({"compile": True}, share / 2)


def _on_the_device(trial: TracedTrial, gain: float) -> Iterator[Remedy]:
    if trial.value("offload_optimizer") == "cpu":
        if trial.value("offload_param") == "cpu":
            yield Remedy({"offload_optimizer": "none", "offload_param": "none"}, gain)
        yield Remedy({"offload_optimizer": "none"}, 0.9 * gain)
    if trial.value("cpu_offload"):
        yield Remedy({"cpu_offload": False}, gain)
