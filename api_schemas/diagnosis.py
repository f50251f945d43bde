"""Where the steps of a training job went, as its traces show: per step and rank, per collective, and how sure that is."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.search_space import KnobValue

PART_NAMES = ("compute", "optimizer", "transferring", "waiting", "copies", "data", "host", "idle")


class Traced(Schema):
    """What a run under the profiler left behind, and what it cost."""

    folder: str
    """With one trace a rank."""
    bytes: int
    """Of all ranks, compressed."""
    steps: int
    """Recorded by each."""
    step_s: float
    """Of a recorded step, on the slowest rank."""
    plain_step_s: float
    """Of the step just before, without the profiler."""
    elapsed_s: float
    """Of the whole run."""


class StepParts(Schema):
    """Seconds of one step of one rank; every moment is in exactly one part, so they sum to the step."""

    compute_s: float = 0.0
    """Kernels, on CPU ranks operators, of forward and backward; communication beside it is hidden."""
    optimizer_s: float = 0.0
    """Clipping and the optimizer's own work."""
    transferring_s: float = 0.0
    """Collectives with nothing computed beside them, once the last rank of the group had come."""
    waiting_s: float = 0.0
    """The same before the last rank had come; 0 where it could not be told apart (see `Diagnosis.notes`)."""
    copies_s: float = 0.0
    """Copies and fills of device memory with nothing else beside them; offload is here."""
    data_s: float = 0.0
    """Waiting for the next batch."""
    host_s: float = 0.0
    """Nothing was launched: Python, dispatch, synchronisation. On CPU ranks everything that is no other part."""
    idle_s: float = 0.0
    """GPU only: launched, but not begun (latency of launches, dependencies between streams)."""

    @property
    def step_s(self) -> float:
        """All of them."""
        return float(sum(getattr(self, f"{name}_s") for name in PART_NAMES))


class RankStep(Schema):
    """One step of one rank."""

    rank: int
    step: int
    parts: StepParts
    communication_s: float
    """Any collective ran."""
    hidden_s: float
    """Of it, beside computation."""


class CollectiveFigures(Schema):
    """Collectives of one kind and purpose, per step and rank."""

    kind: str
    purpose: str
    """parameters, gradients, activations, small values (a norm, a loss, a count) or other: by kind and size."""
    group_size: int | None
    calls: float
    message_bytes: float | None
    """Of a call: the gathered result, what is scattered, the buffer that is reduced; None where the trace does not say."""
    moved_bytes: float | None
    """Through a rank's link, by a ring."""
    transferring_s: float
    """After the last rank had come, hidden or not."""
    waiting_s: float
    """Before that."""
    exposed_s: float
    """With nothing computed beside it."""
    bytes_per_s: float | None
    """Moved bytes by the seconds of transferring (nccl-tests' bus bandwidth)."""


class LateRank(Schema):
    """The rank that the others wait for most."""

    rank: int
    share_of_waiting: float
    """Of all waiting, what ended with this rank's coming."""
    others_wait_s: float
    """Per step: the mean wait of the other ranks for it."""
    steps: int
    """Steps in which it was the one most waited for."""


FindingKind = Literal[
    "all_gathers_dominate",
    "buckets_too_large",
    "buckets_too_small",
    "checkpointed_without_need",
    "data_waits",
    "host_bound",
    "late_rank",
    "network_limits",
    "offload_costs",
    "reduces_every_micro_batch",
    "units_too_large",
    "units_too_small",
]


class Tried(Schema):
    """What came of a remedy in a study of its own: fresh runs of the configuration with and without it, in turn."""

    study_id: str
    """The follow-up, with all its runs."""
    outcome: Literal["faster", "not_faster", "undecided", "does_not_run"]
    """By the rules of any verdict; `does_not_run`: it took too much memory, failed, or trained something else."""
    speedup: float | None = None
    """Median of the pairs' ratios, with the remedy by without it; None where it could not be measured."""
    ci95: tuple[float, float] | None = None
    pairs: int = 0
    why: str = ""
    """Where it does not run."""


class Finding(Schema):
    """A known mistake that a rule sees, and what would change it."""

    kind: FindingKind
    """The rule; docs/diagnosis.md says what each looks at."""
    evidence: str
    """What was seen, with its figures."""
    measured: float
    """What the rule compares with its threshold: a share of the step."""
    threshold: float
    """From which on it speaks."""
    remedy: str
    """What to change, in words."""
    knobs: dict[str, KnobValue] = {}
    """The same as knobs of the search space; empty where the trial is not known, or no knob changes it."""
    expected_gain: float = Field(ge=0, le=1)
    """Share of the step that the change is expected to save: estimated from the trace, not measured."""
    tried: Tried | None = None
    """The same, measured; None where nobody has."""


class Diagnosis(Schema):
    """What the traces of a job say."""

    device: Literal["cuda", "cpu"]
    world_size: int | None
    """As the traces say."""
    ranks: tuple[int, ...]
    """Whose traces were read."""
    step_s: float
    """Mean over steps and ranks, under the profiler."""
    parts: StepParts
    """The same mean."""
    overlap: float | None = Field(default=None, ge=0, le=1)
    """Share of communication that ran beside computation; None without any."""
    steps: tuple[RankStep, ...]
    collectives: tuple[CollectiveFigures, ...]
    """The longest exposed first."""
    late_rank: LateRank | None = None
    """None where nobody waits, or it could not be told."""
    findings: tuple[Finding, ...] = ()
    """The largest expected gain first."""
    recorded: Traced | None = None
    """The run that recorded them; None where the traces were there."""
    notes: tuple[str, ...] = ()
    """What could not be told, and why."""
