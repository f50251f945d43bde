"""Schemas of a study's target (more GPUs than its cluster has, or another kind) and of the answer projected to it."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from shardtune.api_schemas.base import Band, Bound, Schema
from shardtune.api_schemas.machines.hardware import MOST_RANKS, Cluster, NodesPerLeaf, Oversubscription
from shardtune.api_schemas.names import DeviceName
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.rung_tests import RungTest
from shardtune.api_schemas.studies.target_confirmations import TargetConfirmation
from shardtune.api_schemas.studies.target_rehearsals import TargetRehearsal
from shardtune.api_schemas.training.workload import MOST_SAMPLES

MOST_GPUS_OF_NODE = 1024
"""Maximum number of GPUs per node of a target (the larger cluster to which an answer is projected)."""
MOST_RUNGS = 4
"""Maximum number of smaller clusters from whose trials an answer is projected to a target. The largest of them are
used, because they are nearest to the target in size."""
NOT_PROJECTED = "nothing is projected to the target: "
"""First words of the note in which a result says why nothing was projected to the target."""
UnseenAspect = Literal["layout", "nodes", "uplinks", "communication", "gpu"]
"""Property of a target that no measurement covers, so that the band of a projection is wider."""
_TEXT = r"^\s*([0-9]{1,9})(?:x([0-9]{1,9}))?(?:x([A-Za-z0-9][A-Za-z0-9 ._-]{0,99}))?\s*$"


class Target(Schema):
    """Cluster to which the answer of a study is projected: more GPUs than the study's cluster has, or at least as many of
    another kind."""

    nodes: int = Field(ge=1, le=MOST_RANKS, examples=[64])
    """Number of nodes."""
    gpus_per_node: int | None = Field(default=None, ge=1, le=MOST_GPUS_OF_NODE, examples=[8])
    """Number of GPUs per node of the target; null if it is the same as in the study's cluster."""
    gpu: DeviceName | None = Field(default=None, examples=["h200"])
    """Kind of GPU of the target; null if it is that of the study's cluster. For another kind, both kinds must be in the
    catalogue of GPUs: measured speeds are multiplied by the ratio of the speeds predicted on the two."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9, examples=[50.0])
    """Bandwidth between the target's nodes, in GB/s per node and direction. If null, it is that of the study's cluster,
    as measured or stated, or otherwise the usual one of this GPU. For another kind of GPU it is the usual one of that
    kind."""
    nodes_per_leaf: NodesPerLeaf = Field(default=None, examples=[32])
    """Number of nodes below one leaf switch of the target. In a rail-optimized network, where each GPU's port has a leaf
    switch of its own, it is the number of nodes that share these switches. If null, it is that of the study's cluster
    if the GPUs are of the same kind, or otherwise all nodes are below one leaf switch."""
    oversubscription: Oversubscription = Field(default=None, examples=[2.0])
    """Oversubscription of the target's leaf switches: bandwidth of the nodes below one of them, divided by the bandwidth
    of its uplinks. If null, it is that of the study's cluster if `nodes_per_leaf` is null too, or otherwise 1."""
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES, examples=[512])
    """Number of samples per optimizer step on the target; if null, the workload's `global_batch`. The study itself
    trains with that part of them which falls to its smaller cluster, so that each rank does the same work on cluster
    and target."""

    @field_validator("gpus_per_node")
    @classmethod
    def _has_countable_gpus(cls, value: int | None, info: ValidationInfo) -> int | None:
        nodes = int(info.data.get("nodes", 1))
        if value is not None and nodes * value > MOST_RANKS:
            raise ValueError(_too_many(nodes, value))
        return value

    @property
    def short_form(self) -> str:
        """Short form of the target, such as `64x8` (nodes × GPUs per node). It is the number of nodes alone if the GPUs
        per node are not stated."""
        return f"{self.nodes}x{self.gpus_per_node}" if self.gpus_per_node else f"{self.nodes}"

    @property
    def described(self) -> str:
        """Short form of the target, such as `64x8`, followed by what the target states about its network."""
        fields = ("inter_node_gb_per_s", "nodes_per_leaf", "oversubscription")
        stated = [f"{name} {value:g}" for name in fields if (value := getattr(self, name)) is not None]
        kind = f" of {self.gpu}" if self.gpu else ""
        return self.short_form + kind + (f" with {', '.join(stated)}" if stated else "")

    def is_size_of(self, other: "Target | None") -> bool:
        """Whether the other target has the same number of nodes and of GPUs per node, and also the same kind of GPU if
        this target names one."""
        if other is None or self.gpu not in (None, other.gpu):
            return False
        return (self.nodes, self.gpus_per_node) == (other.nodes, other.gpus_per_node)

    def with_batch_of(self, stored: "Target | None") -> "Target":
        """Return this target with the global batch of a stored study's target, unless this target states one itself.

        The workload of a stored study holds only the cluster's part of the target's global batch.
        """
        if stored is None or self.global_batch is not None:
            return self
        return self.model_copy(update={"global_batch": stored.global_batch})


def _too_many(nodes: int, gpus: int) -> str:
    return f"target ({nodes} × {gpus} GPUs) must be at most {MOST_RANKS} GPUs; name fewer nodes"


def _from_text(value: object) -> object:
    """Convert the short form of a target, `64x8`, `64` or `64x8xh100`, or a number of nodes, into its fields. Any other
    value is returned unchanged, to be validated later.

    Raises:
        ValueError: text of another form, or too many GPUs.
    """
    if type(value) is int:
        return {"nodes": value}
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_TEXT, value)
    if match is None:
        raise ValueError(
            f"target ({value[:100]!r}) must read NODES, NODESxGPUS or NODESxGPUSxKIND, such as 64x8 or 64x8xh100"
        )
    nodes, gpus = int(match[1]), int(match[2] or 1)
    if nodes < 1 or gpus < 1:
        raise ValueError(f"target ({value.strip()!r}) must have at least one node and one GPU; for example 8x8")
    if match[3] is not None and match[2] is None:
        raise ValueError(
            f"target ({value.strip()!r}) must state nodes and GPUs of a node before the kind; write 1x{value.strip()}"
        )
    if nodes * gpus > MOST_RANKS:
        raise ValueError(_too_many(nodes, gpus))
    if gpus > MOST_GPUS_OF_NODE:
        raise ValueError(
            f"target ({value.strip()!r}) must have at most {MOST_GPUS_OF_NODE} GPUs of a node; name more nodes instead"
        )
    fields: dict[str, Any] = {"nodes": nodes, "gpus_per_node": int(match[2]) if match[2] else None, "gpu": match[3]}
    return fields


TargetText = Annotated[str, Field(max_length=100, pattern=_TEXT)]
"""Short form of a target: number of nodes, or nodes × GPUs per node, such as `64x8`."""
TargetNodes = Annotated[int, Field(ge=1, le=MOST_RANKS)]
"""Number of nodes of a target. Each node has as many GPUs as a node of the study's cluster."""
TargetChoice = Annotated[Target, BeforeValidator(_from_text, json_schema_input_type=Target | TargetText | TargetNodes)]
"""Target in a request: an object with all fields, or its short form, such as `64x8` (nodes × GPUs per node)."""


class ScaledField(Schema):
    """Field of a configuration whose value on the target differs from the value on the cluster where it was measured."""

    field: str = Field(examples=["dp_shard"])
    measured: int = Field(examples=[16])
    """Value of the field with which the configuration was measured."""
    target: int = Field(examples=[512])
    """Value of the field on the target. Its effect on speed and memory is predicted, not measured."""


class CurvePoint(Schema):
    """Speed of one configuration on a number of nodes."""

    nodes: int
    """Number of nodes. It is 1 also for a cluster with fewer GPUs than a whole node has."""
    gpus: int
    """Number of GPUs."""
    evidence: Literal["measured", "projected"]
    """Origin of the speed. `measured`: the study measured it on this number of nodes; `projected`: it was calculated
    from measurements on another number."""
    tokens_per_s_per_gpu: Band
    """Speed in tokens per second and GPU, with its 90 % band. If the speed was measured, both ends of the band are
    equal to it."""


class ProjectedConfig(Schema):
    """Configuration for the target (a larger cluster), projected from a trial that was measured on the study's
    cluster."""

    trial_number: int
    """Number of the measured trial from which the configuration is projected."""
    config: TrialConfig
    """Configuration on the target."""
    description: str
    """Short description of the configuration on the target."""
    scaled: tuple[ScaledField, ...]
    """Fields whose value on the target differs from the value in the measured trial. Their effect is predicted, not
    measured."""
    measured_tokens_per_s_per_gpu: float
    """Median measured speed of the trial on the study's cluster."""
    tokens_per_s_per_gpu: Band
    """Projected speed on the target with its 90 % band."""
    memory_gib: Band
    """Projected peak memory of tensors in GiB, on the GPU that needs most, with its 90 % band."""
    may_not_fit: bool
    """Whether the 90 % band of the projected peak memory extends beyond the memory that a GPU may use."""
    chance_of_best: float
    """Probability that no other measured configuration is faster than this one on the target, according to the bands of
    the projected speeds."""
    chance_of_trial: float | None = None
    """Probability that the fastest configuration on the target is projected from the same trial as this one; a trial
    may be scaled to the target in several ways. null in answers of older releases."""
    rank_measured: int
    """Rank of the trial among all measured trials by its measured speed; 1 is the fastest."""
    unseen: tuple[UnseenAspect, ...]
    """Properties of the target that the study's cluster could not measure; each widens the band of the speed. `layout`:
    parallel groups are of another kind. `nodes`: there is a network between nodes. `uplinks`: traffic crosses
    oversubscribed leaf switches. `communication`: gradients are exchanged, which the trial, without data-parallel ranks,
    did not do. `gpu`: the GPUs are of another kind."""
    curve: tuple[CurvePoint, ...] = ()
    """Speeds of the configuration on several numbers of nodes, from the study's cluster up to the target. The global
    batch grows with the nodes, so that each rank has as much work as on the study's cluster (weak scaling). If the
    target's GPUs are of another kind, all speeds are projected to that kind, from the study's number of GPUs on."""
    bends_at_gpus: int | None = Field(default=None, examples=[128])
    """Smallest number of GPUs of `curve` on which the expected speed per GPU is more than a tenth below that of the
    first point. null if no size up to the target loses as much, and in answers of older releases."""
    bound_by: Bound | None = Field(default=None, examples=["network"])
    """Resource that takes the largest part of the predicted step on the target. null in answers of older releases."""
    exposed_communication_fraction: float | None = Field(default=None, examples=[0.31])
    """Predicted fraction of a step on the target in which GPUs wait for communication. null in answers of older
    releases."""
    study_exposed_communication_fraction: float | None = Field(default=None, examples=[0.12])
    """Predicted fraction of a step on the study's own cluster in which GPUs wait for communication. null in answers of
    older releases."""


class BestAtSize(Schema):
    """Fastest configuration on one number of nodes, between the study's cluster and its target."""

    nodes: int
    """Number of nodes. It is 1 also for a cluster with fewer GPUs than a whole node has."""
    gpus: int
    """Number of GPUs."""
    global_batch: int
    """Number of samples per optimizer step at this size. It grows with the ranks, so that each rank has as much work as
    on the study's cluster."""
    evidence: Literal["measured", "projected"]
    """Origin of this row. `measured`: the study measured this number of nodes; `projected`: the row was calculated from
    measurements on another number."""
    trial_number: int
    """Number of the measured trial from which the configuration is projected."""
    config: TrialConfig
    """Configuration on this size."""
    description: str
    """Short description of the configuration."""
    tokens_per_s_per_gpu: Band
    """Speed in tokens per second and GPU, with its 90 % band. If the speed was measured, both ends of the band are
    equal to it."""


class StudyProjection(Schema):
    """Answer of a study for its target (a larger cluster). It is projected from what the study's cluster measured,
    until runs on the target itself confirm it or change it."""

    verdict: Literal["projected", "confirmed", "changed"] = "projected"
    """Kind of the answer. `projected`: no runs on the target have decided. `confirmed`: pairs of runs on the target
    confirmed `best`. `changed`: after runs on the target, the first of `runners_up` is the answer (`confirmation` says
    why)."""
    cluster: Cluster
    """Target cluster. Facts about its GPUs, such as their memory, are taken from the study's cluster, or from the
    catalogue of GPUs if they are of another kind."""
    global_batch: int
    """Samples per optimizer step on the target."""
    measured_gpus: int
    """Number of GPUs of the study's cluster."""
    measured_gpu: str | None = Field(default=None, examples=["H100-80GB"])
    """Kind of the study's GPUs, if the target's are of another kind; null if they are of the same kind."""
    doublings: float
    """Number of times that the study's number of GPUs must be doubled to reach the target's; 3 means eight times as
    many GPUs. It is 0 for as many GPUs of another kind."""
    best: ProjectedConfig
    """Configuration with the highest expected speed on the target, among those that are predicted to fit."""
    runners_up: tuple[ProjectedConfig, ...] = ()
    """Configurations with the next highest expected speeds on the target, fastest first."""
    order_changes: bool
    """Whether the fastest configuration on the target is projected from another trial than the fastest one on the
    study's cluster."""
    sizes: tuple[BestAtSize, ...] = ()
    """Fastest configuration for each number of nodes, from the study's cluster to the target. Its trial changes at the
    size from which another strategy is faster."""
    strong_scaling: tuple[CurvePoint, ...] = ()
    """Speeds of `best` on several numbers of nodes with the target's global batch on each of them (strong scaling): with
    fewer nodes, each rank accumulates more micro batches. All are projected. Sizes that do not divide the batch, or on
    which it is not expected to fit into memory, are left out. Empty in answers of older releases."""
    projected: int
    """Number of configurations that were projected to the target."""
    only_at_target: int
    """Number of configurations that fit on the target and not on the study's cluster. They could not be measured."""
    too_large: int
    """Number of configurations that were measured and are predicted not to fit on the target."""
    without_layout: tuple[int, ...] = ()
    """Numbers of the measured trials that are not projected because their parallel groups do not divide the target's
    number of ranks, fastest first."""
    rehearsals: tuple[TargetRehearsal, ...] = ()
    """Rehearsals of the fastest configurations, in which each was built and stepped with fake tensors at the target's
    number of ranks. They are in the order in which they were made. A rejected configuration is neither `best` nor a
    runner-up. Empty if the budget leaves rehearsals out, and in answers of older releases."""
    notes: tuple[str, ...] = ()
    """Sentences about the assumptions behind the projection, and about which of them were not measured."""
    rung_test: RungTest | None = None
    """Comparison of speeds projected from smaller clusters to the study's cluster with the speeds that the study
    measured. null if no earlier study measured the same work on fewer GPUs."""
    confirmation: TargetConfirmation | None = None
    """Comparison, on the target itself, of the two configurations with the highest expected speeds. null until a study
    has run there, for which `confirm.sbatch` is exported."""

    @property
    def answer(self) -> ProjectedConfig:
        """Configuration that is the answer for the target: the fastest projected one, unless runs on the target changed
        it."""
        return self.runners_up[0] if self.verdict == "changed" else self.best

    @property
    def rehearsal_of_answer(self) -> TargetRehearsal | None:
        """Return the rehearsal of the configuration that is the answer for the target; None if it was not rehearsed."""
        return next((one for one in self.rehearsals if one.config == self.answer.config), None)
