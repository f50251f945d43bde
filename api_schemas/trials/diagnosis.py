"""Diagnosis of a training job from its traces: time per step and rank, per collective, and how sure that is."""

from typing import Literal

from pydantic import Field

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.trials.expected_parts import ExpectedPart

PART_NAMES = ("compute", "optimizer", "transferring", "waiting", "copies", "data", "host", "idle")
PART_LETTERS = dict(zip("cotwpdhi", PART_NAMES, strict=True))
"""Letter that stands for each part in a timeline."""


MEMORY_KINDS = ("parameters", "gradients", "optimizer", "activations", "gathered", "buckets", "logits", "other")
_PLACES = {"building": "while the model was built", "optimizer": "in the optimizer"}
MemoryPhase = Literal["building", "forward", "backward", "optimizer"]


class MemoryMoment(Schema):
    """Memory of one rank at a moment: when it first exceeded its limit, else when it was fullest."""

    rank: int
    bytes: int = Field(gt=0)
    """Bytes of tensors, as the allocator counts them."""
    limit_bytes: int | None
    """Memory that a rank may hold; None where nothing was declared."""
    peak_bytes: int
    """Largest bytes of the whole run, at this moment or later."""
    reserved_bytes: int | None = Field(default=None, ge=0, examples=[8_500_000_000])
    """Bytes that the allocator had taken of the GPU then, in use or not; None on CPU ranks, whose allocator keeps
    nothing."""
    phase: MemoryPhase
    """Phase of the step; recomputation for the backward pass is part of `backward`."""
    module: str = Field(examples=["model.layers.17.mlp"])
    """Innermost module that ran; empty: none, such as in the loss or in the optimizer."""
    kinds: dict[str, int] = Field(examples=[{"activations": 41_000_000, "parameters": 8_000_000}])
    """Bytes of each of `MEMORY_KINDS` that was there. `activations`: with temporary tensors of backward, `gathered`:
    parameters of other ranks, `buckets`: buffers of reductions, `logits`: the head's output and the loss."""
    holders: dict[str, int] = {}
    """Bytes of activations by the module in which they were made, the largest first."""

    def describe(self) -> str:
        """Return a sentence such as `rank 1 held 104.0 MiB of at most 40.0 in backward of model.layers.2.mlp:
        activations 64%, …`."""
        mib = 1 << 20
        limit = "" if self.limit_bytes is None else f" of at most {self.limit_bytes / mib:,.1f}"
        where = _PLACES.get(self.phase, f"in {self.phase} of {self.module or 'no module (the loss)'}")
        largest = sorted(self.kinds.items(), key=lambda kind_and_size: -kind_and_size[1])[:3]
        kinds = ", ".join(f"{kind} {size / self.bytes:.0%}" for kind, size in largest)
        text = f"rank {self.rank} held {self.bytes / mib:,.1f} MiB{limit} {where}: {kinds}"
        free = (self.reserved_bytes or 0) - self.bytes
        return f"{text}; {free / mib:,.1f} MiB more were reserved by the allocator and free" if free > 0 else text


class ProfilerRecording(Schema):
    """Recording of a run under the profiler, and its cost."""

    folder: str = Field(examples=["work/run-5d1e0c2f7f6f-1/traces"])
    """Folder with one trace per rank."""
    bytes: int
    """Size of the traces of all ranks, compressed."""
    steps: int
    """Number of steps that each rank recorded."""
    step_s: float
    """Seconds of a recorded step, on the slowest rank."""
    plain_step_s: float
    """Seconds of the step just before, without the profiler."""
    elapsed_s: float
    """Seconds of the whole run."""
    foreign_cpu_cores: float | None = Field(default=None, ge=0, examples=[0.1])
    """Cores that other programs kept busy meanwhile, on average over the run; None where that could not be observed."""
    host_cpu_cores: int | None = Field(default=None, ge=1, examples=[32])
    """Number of cores that the ranks of the host could use."""
    memory: MemoryMoment | None = None
    """Memory of the fullest rank, of a compiled model without modules; None where more happened than is kept."""


class StepParts(Schema):
    """Seconds of one step of one rank; every moment is in exactly one part, so they sum to the step."""

    compute_s: float = 0.0
    """Kernels, on CPU ranks operators, of forward and backward; communication beside them is hidden."""
    optimizer_s: float = 0.0
    """Clipping and the optimizer's own work."""
    transferring_s: float = 0.0
    """Collectives with nothing computed beside them, once the last rank of the group had joined."""
    waiting_s: float = 0.0
    """Collectives with nothing computed beside them before the last rank had joined; 0 where the trace does not
    allow to separate them (see `Diagnosis.notes`)."""
    copies_s: float = 0.0
    """Copies and fills of device memory with nothing else beside them; offload is here."""
    data_s: float = 0.0
    """Waiting for the next batch."""
    host_s: float = 0.0
    """Time in which nothing was launched: Python, dispatch, synchronisation. On CPU ranks everything that is no
    other part."""
    idle_s: float = 0.0
    """Time in which work was launched, but not begun (latency of launches, dependencies between streams); GPU only."""

    @property
    def step_s(self) -> float:
        """Seconds of all parts: the step."""
        return float(sum(getattr(self, f"{name}_s") for name in PART_NAMES))


class RankStep(Schema):
    """Time of one step of one rank."""

    rank: int
    step: int
    parts: StepParts
    """Parts of this step."""
    communication_s: float
    """Seconds in which any collective ran."""
    hidden_s: float
    """Seconds of communication that ran beside computation."""


class Lane(Schema):
    """One rank's step, cut into cells of equal length: the part in the middle of each."""

    rank: int
    parts: str = Field(max_length=1000, pattern="^[cotwpdhi]*$", examples=["hccccttco"])
    """Parts, a letter per cell: c compute, o optimizer, t transferring, w waiting, p copies, d data, h host, i idle."""
    communication: str = Field(max_length=1000, pattern="^[xb.]*$", examples=["..bbbxx.."])
    """Communication, a letter per cell. x: a collective ran with nothing computed beside it; b: beside computation;
    a dot: none ran."""


class Timeline(Schema):
    """One step of the first ranks, each from its own begin."""

    step: int
    seconds: float
    """Seconds of the longest lane; the others are as long in proportion to their cells."""
    lanes: tuple[Lane, ...]
    """Lanes of the first ranks."""


class CollectiveFigures(Schema):
    """Collectives of one kind and purpose, per step and rank."""

    kind: str = Field(examples=["all_gather"])
    purpose: str = Field(examples=["parameters"])
    """Purpose by kind and size: parameters, gradients, activations, small values (a norm, a loss, a count) or other."""
    group_size: int | None
    """Number of ranks that take part; None where the trace does not tell."""
    calls: float
    """Number of calls per step and rank."""
    message_bytes: float | None
    """Bytes per call: the gathered result, the scattered input, the reduced buffer; None where the trace does not
    tell."""
    moved_bytes: float | None
    """Bytes moved through a rank's link, by a ring."""
    transferring_s: float
    """Seconds after the last rank had joined, hidden or not."""
    waiting_s: float
    """Seconds before the last rank had joined."""
    exposed_s: float
    """Seconds with nothing computed beside it."""
    bytes_per_s: float | None
    """Moved bytes over the seconds of transferring (nccl-tests' bus bandwidth)."""


class LateRank(Schema):
    """Rank that the others wait for most."""

    rank: int
    share_of_waiting: float
    """Fraction of all waiting that ended when this rank joined."""
    others_wait_s: float
    """Mean seconds per step that the other ranks waited for it."""
    steps: int
    """Number of steps in which it was the one most waited for."""


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


class RemedyResult(Schema):
    """Result of a remedy in a study of its own: validation runs of the configuration with and without it, in turn."""

    study_id: str
    """Follow-up study with all its runs."""
    outcome: Literal["faster", "not_faster", "undecided", "does_not_run"]
    """Outcome by the rules of any verdict; `does_not_run`: it took too much memory, failed, or trained something
    else."""
    speedup: float | None = None
    """Median of the pairs' ratios, with the remedy by without it; None where it could not be measured."""
    ci95: tuple[float, float] | None = None
    pairs: int = 0
    why: str = ""
    """Reason why it does not run; empty otherwise."""


class Finding(Schema):
    """Known mistake that a rule detected, with its remedy."""

    kind: FindingKind
    """Rule that detected it; docs/explanation/diagnosis.md describes each."""
    evidence: str = Field(examples=["exposed all-gathers take 38% of the step"])
    """Evidence with its figures."""
    measured: float
    """Value that the rule compares with its threshold: a fraction of the step."""
    threshold: float
    """Threshold from which the rule reports a finding."""
    remedy: str = Field(examples=["dp_shard 4 instead of 8"])
    """Change to make, in words."""
    knobs: dict[str, KnobValue] = {}
    """Change as knobs of the search space; empty where the trial is not known, or no knob makes it."""
    expected_gain: float = Field(ge=0, le=1)
    """Fraction of the step that the change is expected to save: estimated from the trace, not measured. 0 for
    `out_of_memory`, whose change is to fit."""
    tried: RemedyResult | None = None
    """Measured result of the remedy; None where nobody has tried it."""


class Diagnosis(Schema):
    """Diagnosis of a job from its traces."""

    device: Literal["cuda", "cpu"]
    world_size: int | None
    """Number of ranks according to the traces."""
    ranks: tuple[int, ...]
    """Ranks whose traces were read."""
    step_s: float
    """Mean over steps and ranks, under the profiler."""
    parts: StepParts
    """Mean parts over steps and ranks."""
    overlap: float | None = Field(default=None, ge=0, le=1)
    """Fraction of communication that ran beside computation; None without any."""
    steps: tuple[RankStep, ...]
    """Each recorded step of each rank."""
    collectives: tuple[CollectiveFigures, ...]
    """Collectives, longest exposed first."""
    late_rank: LateRank | None = None
    """Rank that the others wait for most; None where nobody waits, or the traces do not tell."""
    timeline: Timeline | None = None
    """Timeline of one recorded step; None where a step has no length."""
    findings: tuple[Finding, ...] = ()
    """Findings, largest expected gain first."""
    expected: tuple[ExpectedPart, ...] = ()
    """Parts against their prediction, largest deviation first; empty where the trial is not known, or no rates of
    its machine are."""
    recorded: ProfilerRecording | None = None
    """Run that recorded the traces; None where the traces existed before."""
    notes: tuple[str, ...] = ()
    """Questions that the traces do not answer, each with the reason."""
