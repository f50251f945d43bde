"""Schemas of the diagnosis of a training job from its profiler traces: time by part of the step, by rank and by
collective, with findings."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import PrintableText
from shardtune.api_schemas.trials.expected_parts import ExpectedPart

PART_NAMES = ("compute", "optimizer", "transferring", "waiting", "copies", "data", "host", "idle")
PART_LETTERS = dict(zip("cotwpdhi", PART_NAMES, strict=True))
"""Letters that stand for the parts of a training step in a timeline, by the name of the part."""


_PLACES = {"building": "while the model was built", "optimizer": "in the optimizer"}
MemoryPhase = Literal["building", "forward", "backward", "optimizer"]

# A worker sends diagnoses, and pages divide by their figures and add them up: each has a bound that a job can reach.
Seconds = Annotated[float, Field(ge=0, le=1e10)]
Bytes = Annotated[float, Field(ge=0, le=1e30)]
WholeBytes = Annotated[int, Field(ge=0, lt=2**62)]
RankNumber = Annotated[int, Field(ge=0, lt=2**31)]
StepCount = Annotated[int, Field(ge=0, lt=2**31)]


class MemoryMoment(Schema):
    """Memory of one rank at one moment: the moment at which it first exceeded its limit, or the moment of its peak if
    it never did."""

    rank: RankNumber
    bytes: int = Field(gt=0, lt=2**62)
    """Bytes of tensors at the recorded moment, as counted by the allocator."""
    limit_bytes: WholeBytes | None
    """Memory limit of a rank in bytes; None if none was declared."""
    peak_bytes: WholeBytes
    """Peak bytes of tensors in the whole run. The peak was reached at the recorded moment, or later."""
    reserved_bytes: int | None = Field(default=None, ge=0, lt=2**62, examples=[8_500_000_000])
    """Bytes that the allocator had reserved on the GPU at the recorded moment, used or not; None on CPU ranks, whose
    allocator reserves nothing."""
    phase: MemoryPhase
    """Phase of the training step at the recorded moment; recomputation for backward counts as `backward`."""
    module: PrintableText = Field(examples=["model.layers.17.mlp"])
    """Innermost module that was running at the recorded moment; empty if none, such as in the loss or the optimizer."""
    kinds: dict[PrintableText, WholeBytes] = Field(examples=[{"activations": 41_000_000, "parameters": 8_000_000}])
    """Bytes of tensors at the recorded moment by kind: `parameters`, `gradients`, `optimizer`, `activations` (with
    temporary tensors of backward), `gathered` (parameters of other ranks), `buckets` (buffers of reductions), `logits`
    (the output head's result and the loss), `other`."""
    holders: dict[PrintableText, WholeBytes] = {}
    """Bytes of activations at the recorded moment by the module that created them, largest first."""

    def describe(self) -> str:
        """Return a sentence about the rank's memory, such as `rank 1 held 104.0 MiB of at most 40.0 in backward of
        model.layers.2.mlp: activations 64%, …`."""
        mib = 1 << 20
        limit = "" if self.limit_bytes is None else f" of at most {self.limit_bytes / mib:,.1f}"
        where = _PLACES.get(self.phase, f"in {self.phase} of {self.module or 'no module (the loss)'}")
        largest = sorted(self.kinds.items(), key=lambda kind_and_size: -kind_and_size[1])[:3]
        kinds = ", ".join(f"{kind} {size / self.bytes:.0%}" for kind, size in largest)
        text = f"rank {self.rank} held {self.bytes / mib:,.1f} MiB{limit} {where}: {kinds}"
        free = (self.reserved_bytes or 0) - self.bytes
        return f"{text}; {free / mib:,.1f} MiB more were reserved by the allocator and free" if free > 0 else text


class ProfilerRecording(Schema):
    """Facts about a run that was recorded under the profiler, such as the time that profiling adds to a step."""

    folder: PrintableText = Field(examples=["work/run-5d1e0c2f7f6f-1/traces"])
    """Folder on the worker that holds the recorded traces, one file for each rank."""
    bytes: WholeBytes
    """Compressed size in bytes of all ranks' traces."""
    steps: StepCount
    """Number of steps recorded by each rank."""
    step_s: Seconds
    """Seconds of a step recorded under the profiler, on the slowest rank."""
    plain_step_s: Seconds
    """Seconds of the last step before the recording, without the profiler. If samples differ in length, the mean over
    one cycle of steps, after which the lengths repeat."""
    elapsed_s: Seconds
    """Seconds of the whole profiled run."""
    foreign_cpu_cores: float | None = Field(default=None, ge=0, le=1e6, examples=[0.1])
    """Average number of CPU cores that other programs used during the run; None if it could not be observed."""
    host_cpu_cores: int | None = Field(default=None, ge=1, le=1_000_000, examples=[32])
    """Number of CPU cores available to the ranks of the host."""
    memory: MemoryMoment | None = None
    """Memory of the rank with the highest peak, at the moment of that peak. Memory by module is missing for a compiled
    model. If None, the run had more memory events than the recorder keeps."""


class StepParts(Schema):
    """Seconds of one step of one rank, divided into parts; each moment belongs to exactly one part, so that the parts
    sum to the step."""

    compute_s: Seconds = 0.0
    """Seconds of forward and backward computation: kernels on a GPU, operators on CPU ranks. Communication that runs at
    the same time is not counted again."""
    optimizer_s: Seconds = 0.0
    """Seconds that the rank spent on gradient clipping and the optimizer's update."""
    transferring_s: Seconds = 0.0
    """Seconds of collectives while the rank computed nothing, counted from the moment at which the last rank of the
    group had joined."""
    waiting_s: Seconds = 0.0
    """Seconds of collectives while the rank computed nothing, before the last rank of the group had joined. 0 if the
    traces do not show when ranks join (see `Diagnosis.notes`)."""
    copies_s: Seconds = 0.0
    """Seconds of copies to or from device memory and of fills, while the rank did nothing else. Offloading is
    included."""
    data_s: Seconds = 0.0
    """Seconds of waiting for the next batch of data."""
    host_s: Seconds = 0.0
    """Seconds in which the GPU had no work because the host had launched none; the host was busy with Python, dispatch
    or synchronisation. On CPU ranks, it is all time that belongs to no other part."""
    idle_s: Seconds = 0.0
    """Seconds in which the GPU had launched work that could not begin yet, because of launch latency or of dependencies
    between streams. 0 on CPU ranks."""

    @property
    def step_s(self) -> float:
        """Seconds of the step: the sum of all parts."""
        return float(sum(getattr(self, f"{name}_s") for name in PART_NAMES))


class RankStep(Schema):
    """Time of one step on one rank, divided into parts."""

    rank: RankNumber
    step: StepCount
    parts: StepParts
    """Seconds of the step by part."""
    communication_s: Seconds
    """Seconds in which at least one collective ran on the rank, whether or not the rank computed at the same time."""
    hidden_s: Seconds
    """Seconds in which a collective ran while the rank computed."""


class Lane(Schema):
    """One rank's training step in a timeline, cut into cells of equal length. Each cell shows the part of the step that
    ran at the cell's middle."""

    rank: RankNumber
    parts: str = Field(max_length=1000, pattern="^[cotwpdhi]*$", examples=["hccccttco"])
    """Parts of the step, one letter for each cell of the timeline. c: compute, o: optimizer, t: transfer by
    collectives, w: wait for other ranks, p: memory copies, d: wait for data, h: wait for the host, i: idle."""
    communication: str = Field(max_length=1000, pattern="^[xb.]*$", examples=["..bbbxx.."])
    """Communication during the step, one letter for each cell of the timeline. x: a collective ran while the rank
    computed nothing; b: a collective ran while the rank computed; a dot: no collective ran."""


class Timeline(Schema):
    """Timeline of one training step on the first ranks. The lane (row) of each rank begins at the moment at which that
    rank begins the step."""

    step: StepCount
    seconds: Seconds
    """Seconds that the longest lane (row of one rank) of the timeline covers. The other lanes have fewer cells in
    proportion to their length."""
    lanes: tuple[Lane, ...] = Field(min_length=1)
    """Lane (row) of each rank that the timeline shows, which are the first ones."""


class CollectiveFigures(Schema):
    """Time and traffic of the collectives of one kind and purpose, per step and rank."""

    kind: PrintableText = Field(examples=["all_gather"])
    purpose: PrintableText = Field(examples=["parameters"])
    """Purpose of the collectives, derived from kind and size: parameters, gradients, activations, small values (a norm,
    a loss, a count) or other."""
    group_size: RankNumber | None
    """Number of ranks in the collective's group; None if the trace does not contain it."""
    calls: Annotated[float, Field(ge=0, le=1e12)]
    """Number of calls of the collective per step and rank."""
    message_bytes: Bytes | None
    """Bytes per call, measured at the gathered result, the scattered input or the reduced buffer. None if the trace
    does not state them."""
    moved_bytes: Bytes | None
    """Bytes per step that each rank sends over its link, on the assumption of a ring algorithm. None if the trace does
    not state the sizes."""
    transferring_s: Seconds
    """Seconds per step of the collectives after the last rank of the group had joined, whether or not ranks computed at
    the same time."""
    waiting_s: Seconds
    """Seconds per step of the collectives before the last rank of the group had joined."""
    exposed_s: Seconds
    """Seconds per step of the collectives while the rank computed nothing."""
    bytes_per_s: float | None = Field(ge=0, le=1e40)
    """Bus bandwidth in bytes per second, as nccl-tests defines it: `moved_bytes` divided by `transferring_s`."""


class LateRank(Schema):
    """Rank for which the other ranks wait most."""

    rank: RankNumber
    share_of_waiting: float = Field(ge=0, le=1)
    """Fraction of the job's total waiting time for which the other ranks waited until this rank joined a collective."""
    others_wait_s: Seconds
    """Mean seconds per step that the other ranks waited for this rank."""
    steps: StepCount
    """Number of steps in which the others waited most for this rank."""


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
    """Measured result of a finding's remedy in a follow-up study: alternating validation runs with and without the
    remedy."""

    study_id: PrintableText
    """Id of the follow-up study, which contains all runs with and without the remedy."""
    outcome: Literal["faster", "not_faster", "undecided", "too_busy", "does_not_run"]
    """Outcome of the remedy, by the same rules as a study's verdict. `does_not_run` means that the configuration with
    the remedy exceeded the memory limit, failed, or did not reproduce the losses."""
    speedup: float | None = Field(default=None, gt=0, le=1e6)
    """Median speed-up of the remedy over the pairs of runs: speed with the remedy divided by speed without it. None if
    it could not be measured."""
    ci95: tuple[float, float] | None = None
    pairs: StepCount = 0
    why: PrintableText = ""
    """Reason why the configuration with the remedy does not run; empty if it does."""


class Finding(Schema):
    """Known performance problem that a rule detected in the traces, with its remedy."""

    kind: FindingKind
    """Name of the rule that detected the problem; docs/explanation/diagnosis.md describes each."""
    evidence: PrintableText = Field(examples=["exposed all-gathers take 38% of the step"])
    """Evidence for the finding, with its figures."""
    measured: float = Field(ge=-1e12, le=1e12)
    """Value that the rule measured and compares with its threshold, as a fraction of the step's time."""
    threshold: float = Field(ge=-1e12, le=1e12)
    """Threshold for the measured value of the rule; above it, the rule reports a finding."""
    remedy: PrintableText = Field(examples=["dp_shard 4 instead of 8"])
    """Recommended change, as text."""
    knobs: dict[PrintableText, bool | int | float | PrintableText] = {}
    """Recommended change, as knobs of the search space with their values. Empty if the trial of the traces is not
    known, or no knob makes the change."""
    expected_gain: float = Field(ge=0, le=1)
    """Fraction of the step time that the recommended change is expected to save: an estimate from the trace, not a
    measurement. 0 for `out_of_memory`, whose remedy makes the configuration fit and not faster."""
    remedy_result: RemedyResult | None = None
    """Measured result of the remedy; None if it has not been tried."""


class Diagnosis(Schema):
    """Diagnosis of a training job from its profiler traces."""

    device: Literal["cuda", "cpu"]
    world_size: int | None = Field(ge=1, lt=2**31)
    """Number of ranks of the job, according to its traces."""
    ranks: tuple[RankNumber, ...] = Field(min_length=1)
    """Numbers of the ranks whose traces were read."""
    step_s: Seconds
    """Mean seconds of a step over steps and ranks, measured under the profiler."""
    parts: StepParts
    """Seconds of each part of a step, as means over steps and ranks."""
    overlap: float | None = Field(default=None, ge=0, le=1)
    """Fraction of the communication time in which the ranks computed at the same time; None without communication."""
    steps: tuple[RankStep, ...] = Field(min_length=1)
    """Time of each recorded step of each rank, divided into its parts."""
    collectives: tuple[CollectiveFigures, ...]
    """Time and traffic of the collectives, by kind and purpose. Those come first that run longest without overlapping
    computation."""
    late_rank: LateRank | None = None
    """Rank for which the other ranks wait most. None if no rank waits long, or the traces do not show it."""
    timeline: Timeline | None = None
    """Timeline of one recorded step. None if no time could be measured in the step."""
    findings: tuple[Finding, ...] = ()
    """Findings (known performance problems), largest expected gain first."""
    expected: tuple[ExpectedPart, ...] = ()
    """Parts of the step, each with its measured and its predicted time, the one with the largest deviation first. Empty
    if the trial is not known, or the rates of its machine are not."""
    recorded: ProfilerRecording | None = None
    """Facts about the run that recorded the traces; None if existing traces were analysed."""
    notes: tuple[PrintableText, ...] = ()
    """Sentences that say which questions the traces cannot answer, each with the reason."""

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        """Reject a diagnosis that has steps of ranks that are not listed in `ranks`, or that lists a rank twice."""
        with_steps, listed = {step.rank for step in self.steps}, set(self.ranks)
        if not with_steps <= listed or len(listed) != len(self.ranks):
            raise ValueError(
                f"ranks ({list(self.ranks[:8])}) must be the different ranks of the steps; list each rank whose trace was read"
            )
        return self
