"""Where the steps of a training job went, as its traces show: per step and rank, per collective, and how sure that is."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.trials.expected_parts import ExpectedPart

PART_NAMES = ("compute", "optimizer", "transferring", "waiting", "copies", "data", "host", "idle")
PART_LETTERS = dict(zip("cotwpdhi", PART_NAMES, strict=True))
"""What stands for each part in a timeline."""


MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "gathered", "buckets", "logits", "other")
_PLACES = {"building": "while the model was built", "optimizer": "in the optimizer"}
MemoryPhase = Literal["building", "forward", "backward", "optimizer"]


class MemoryMoment(Schema):
    """What one rank held at a moment: when it first held more than its limit, else when it was fullest."""

    rank: int
    bytes: int = Field(gt=0)
    """Of tensors, as the allocator counts them."""
    limit_bytes: int | None
    """What a rank may hold; None where nothing was declared."""
    peak_bytes: int
    """Later, or then."""
    reserved_bytes: int | None = Field(default=None, ge=0, examples=[8_500_000_000])
    """That the allocator had taken of the GPU then, in use or not; None on CPU ranks, whose allocator keeps nothing."""
    phase: MemoryPhase
    """What was computed again for the backward pass is part of it."""
    module: str = Field(examples=["model.layers.17.mlp"])
    """The innermost one that ran; empty: none, such as in the loss or in the optimizer."""
    kinds: dict[str, int] = Field(examples=[{"activations": 41_000_000, "parameters": 8_000_000}])
    """Bytes of each of `MEMORY_KINDS` that was there. `activations` with what backward makes meanwhile, `gathered`: parameters of
    other ranks, `buckets`: buffers of reductions, `logits`: the head's output and the loss."""
    holders: dict[str, int] = {}
    """Activations by the module in which they were made, the largest first."""

    def describe(self) -> str:
        """Such as `rank 1 held 104.0 MiB of at most 40.0 in backward of model.layers.2.mlp: activations 64%, …`."""
        mib = 1 << 20
        limit = "" if self.limit_bytes is None else f" of at most {self.limit_bytes / mib:,.1f}"
        where = _PLACES.get(self.phase, f"in {self.phase} of {self.module or 'no module (the loss)'}")
        largest = sorted(self.kinds.items(), key=lambda one: -one[1])[:3]
        kinds = ", ".join(f"{kind} {size / self.bytes:.0%}" for kind, size in largest)
        told = f"rank {self.rank} held {self.bytes / mib:,.1f} MiB{limit} {where}: {kinds}"
        free = (self.reserved_bytes or 0) - self.bytes
        return f"{told}; {free / mib:,.1f} MiB more were reserved by the allocator and free" if free > 0 else told


class Traced(Schema):
    """What a run under the profiler left behind, and what it cost."""

    folder: str = Field(examples=["work/run-5d1e0c2f7f6f-1/traces"])
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
    foreign_cpu_cores: float | None = Field(default=None, ge=0, examples=[0.1])
    """Cores that other programs kept busy meanwhile, on average over the run; None where it could not be seen."""
    host_cpu_cores: int | None = Field(default=None, ge=1, examples=[32])
    """Cores that ranks of its host could use."""
    memory: MemoryMoment | None = None
    """Of the fullest rank; None where more happened than is kept. Of a compiled model without modules."""


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
    """Of this step."""
    communication_s: float
    """Any collective ran."""
    hidden_s: float
    """Of it, beside computation."""


class Lane(Schema):
    """One rank's step, cut into cells of equal length: what was there in the middle of each."""

    rank: int
    parts: str = Field(max_length=1000, pattern="^[cotwpdhi]*$", examples=["hccccttco"])
    """A letter a cell: c compute, o optimizer, t transferring, w waiting, p copies, d data, h host, i idle."""
    communication: str = Field(max_length=1000, pattern="^[xb.]*$", examples=["..bbbxx.."])
    """x: a collective ran with nothing computed beside it; b: beside computation; a dot: none ran."""


class Timeline(Schema):
    """One step of the first ranks, each from its own begin."""

    step: int
    seconds: float
    """Of the longest lane; the others are as long in proportion to their cells."""
    lanes: tuple[Lane, ...]
    """Of the first ranks."""


class CollectiveFigures(Schema):
    """Collectives of one kind and purpose, per step and rank."""

    kind: str = Field(examples=["all_gather"])
    purpose: str = Field(examples=["parameters"])
    """parameters, gradients, activations, small values (a norm, a loss, a count) or other: by kind and size."""
    group_size: int | None
    """Ranks that take part; None where the trace does not say."""
    calls: float
    """Of a step and rank."""
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
    "out_of_memory",
    "reduces_every_micro_batch",
    "units_too_large",
    "units_too_small",
]


class Tried(Schema):
    """What came of a remedy in a study of its own: validation runs of the configuration with and without it, in turn."""

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
    """The rule; docs/explanation/diagnosis.md says what each looks at."""
    evidence: str = Field(examples=["exposed all-gathers take 38% of the step"])
    """What was seen, with its figures."""
    measured: float
    """What the rule compares with its threshold: a share of the step."""
    threshold: float
    """From which on it speaks."""
    remedy: str = Field(examples=["dp_shard 4 instead of 8"])
    """What to change, in words."""
    knobs: dict[str, KnobValue] = {}
    """The same as knobs of the search space; empty where the trial is not known, or no knob changes it."""
    expected_gain: float = Field(ge=0, le=1)
    """Share of the step that the change is expected to save: estimated from the trace, not measured. 0 of `out_of_memory`, whose
    change is to fit."""
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
    """Each recorded step of each rank."""
    collectives: tuple[CollectiveFigures, ...]
    """The longest exposed first."""
    late_rank: LateRank | None = None
    """None where nobody waits, or it could not be told."""
    timeline: Timeline | None = None
    """Of one recorded step; None where a step has no length."""
    findings: tuple[Finding, ...] = ()
    """The largest expected gain first."""
    expected: tuple[ExpectedPart, ...] = ()
    """What is furthest from its prediction first; empty where the trial is not known, or no rates of its machine are."""
    recorded: Traced | None = None
    """The run that recorded them; None where the traces were there."""
    notes: tuple[str, ...] = ()
    """What could not be told, and why."""
