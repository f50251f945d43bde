"""Schemas of a study's target: more GPUs than its cluster has, and the answer projected to them."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from shardtune.api_schemas.base import Band, Schema
from shardtune.api_schemas.machines.hardware import MOST_RANKS, Cluster
from shardtune.api_schemas.names import DeviceName
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.rung_tests import RungTest
from shardtune.api_schemas.studies.target_confirmations import TargetConfirmation
from shardtune.api_schemas.studies.target_rehearsals import TargetRehearsal
from shardtune.api_schemas.training.workload import MOST_SAMPLES

MOST_GPUS_OF_NODE = 1024
"""Maximum number of GPUs of one node of a target."""
MOST_RUNGS = 4
"""Maximum number of smaller clusters whose trials an answer is projected from, the largest first: the nearest sizes count
most."""
NOT_PROJECTED = "nothing is projected to the target: "
"""First words of the note with which a result says why it has no projection to the target."""
_TEXT = r"^\s*([0-9]{1,9})(?:x([0-9]{1,9}))?(?:x([A-Za-z0-9][A-Za-z0-9 ._-]{0,99}))?\s*$"


class Target(Schema):
    """Larger cluster that a study's answer is projected to: the same GPUs, more nodes of them."""

    nodes: int = Field(ge=1, le=MOST_RANKS, examples=[64])
    """Number of nodes."""
    gpus_per_node: int | None = Field(default=None, ge=1, le=MOST_GPUS_OF_NODE, examples=[8])
    """Number of GPUs of a node; null: as many as the study's cluster has."""
    gpu: DeviceName | None = None
    """Kind of GPU, which must be the cluster's; null: the same."""
    inter_node_gb_per_s: float | None = Field(default=None, gt=0, le=1e9, examples=[50.0])
    """Bandwidth between nodes in GB/s, per node and direction; null: the cluster's, as measured or stated, else the usual
    one of this GPU."""
    global_batch: int | None = Field(default=None, ge=1, le=MOST_SAMPLES, examples=[512])
    """Samples per optimizer step on the target; null: the workload's `global_batch`. With a target, the study trains
    with the part of them that falls to its smaller cluster, so that each rank does the same work on cluster and
    target."""

    @field_validator("gpus_per_node")
    @classmethod
    def _has_countable_gpus(cls, value: int | None, info: ValidationInfo) -> int | None:
        nodes = int(info.data.get("nodes", 1))
        if value is not None and nodes * value > MOST_RANKS:
            raise ValueError(_too_many(nodes, value))
        return value

    @property
    def short_form(self) -> str:
        """Short form of the target, such as `64x8`; only the number of nodes if the GPUs per node are not stated."""
        return f"{self.nodes}x{self.gpus_per_node}" if self.gpus_per_node else f"{self.nodes}"

    @property
    def described(self) -> str:
        """Short form of the target, followed by its bandwidth between nodes if the target states one."""
        network = self.inter_node_gb_per_s
        return self.short_form + ("" if network is None else f" with inter_node_gb_per_s {network:g}")

    def is_size_of(self, other: "Target | None") -> bool:
        """Whether another target has the same nodes and GPUs per node, and the kind of GPU that this target names, if
        any."""
        if other is None or self.gpu not in (None, other.gpu):
            return False
        return (self.nodes, self.gpus_per_node) == (other.nodes, other.gpus_per_node)

    def with_batch_of(self, stored: "Target | None") -> "Target":
        """Return the target with the global batch of a stored study's target, unless this target states one itself.

        The workload of a stored study holds only the cluster's part of the target's global batch.
        """
        if stored is None or self.global_batch is not None:
            return self
        return self.model_copy(update={"global_batch": stored.global_batch})


def _too_many(nodes: int, gpus: int) -> str:
    return f"target ({nodes} × {gpus} GPUs) must be at most {MOST_RANKS} GPUs; name fewer nodes"


def _from_text(value: object) -> object:
    """Read the short form of a target: `64x8`, `64`, `64x8xh100` or a number of nodes; any other value is left to
    validation.

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
"""Short form of a target: nodes, or nodes × GPUs of a node, such as `64x8`."""
TargetNodes = Annotated[int, Field(ge=1, le=MOST_RANKS)]
"""Target as a number of nodes, each with as many GPUs as a node of the cluster."""
TargetChoice = Annotated[Target, BeforeValidator(_from_text, json_schema_input_type=Target | TargetText | TargetNodes)]
"""Target in a request: in full, or by its short form."""


class ScaledField(Schema):
    """Field of a configuration that has another value on the target than on the cluster that measured it."""

    field: str = Field(examples=["dp_shard"])
    measured: int = Field(examples=[16])
    """Value with which the configuration was measured."""
    target: int = Field(examples=[512])
    """Value on the target, whose effect is predicted."""


class CurvePoint(Schema):
    """Speed of one configuration on one number of nodes, where each rank has as much work as on the study's cluster."""

    nodes: int
    """Number of nodes; 1 if there are fewer GPUs than one node has."""
    gpus: int
    """Number of GPUs."""
    evidence: Literal["measured", "projected"]
    """`measured`: the study measured this number of nodes; `projected`: the speed is projected."""
    tokens_per_s_per_gpu: Band
    """Speed with its 90 % band; without a band where it was measured."""


class ProjectedConfig(Schema):
    """Configuration on the target, projected from a measured trial."""

    trial_number: int
    """Number of the measured trial from which the configuration is projected."""
    config: TrialConfig
    """Configuration on the target."""
    description: str
    """Short description of the configuration on the target."""
    scaled: tuple[ScaledField, ...]
    """Fields with another value on the target than in the trial; their effect is predicted, not measured."""
    measured_tokens_per_s_per_gpu: float
    """Median measured speed of the trial on the study's cluster."""
    tokens_per_s_per_gpu: Band
    """Projected speed on the target with its 90 % band."""
    memory_gib: Band
    """Projected peak of tensors in GiB on the GPU that needs most memory, with its 90 % band."""
    may_not_fit: bool
    """Whether the 90 % band of the projected peak memory reaches beyond the memory that a GPU may use."""
    chance_of_best: float
    """Probability, by the projected bands, that no other measured configuration is faster on the target."""
    chance_of_trial: float | None = None
    """Probability that the fastest configuration on the target is projected from this trial, which may be scaled to the
    target in several ways; null in answers of older releases."""
    rank_measured: int
    """Rank of the trial by its measured speed among all measured ones, from 1."""
    unseen: tuple[Literal["layout", "nodes", "communication"], ...]
    """Properties of the target that the study's cluster cannot measure, each of which widens the band: groups of
    another kind (`layout`), the network between nodes (`nodes`), the exchange of gradients where the trial had no
    data-parallel ranks (`communication`)."""
    curve: tuple[CurvePoint, ...] = ()
    """Speeds of the configuration at sizes from the study's cluster up to the target."""


class BestAtSize(Schema):
    """Fastest configuration on one number of nodes."""

    nodes: int
    """Number of nodes; 1 if there are fewer GPUs than one node has."""
    gpus: int
    """Number of GPUs."""
    global_batch: int
    """Samples per optimizer step at this size, so that each rank has as much work as on the study's cluster."""
    evidence: Literal["measured", "projected"]
    """`measured`: the study measured this number of nodes; `projected`: the row is projected."""
    trial_number: int
    """Number of the measured trial from which the configuration is projected."""
    config: TrialConfig
    """Configuration on this size."""
    description: str
    """Short description of the configuration."""
    tokens_per_s_per_gpu: Band
    """Speed with its 90 % band; without a band where it was measured."""


class StudyProjection(Schema):
    """Answer of a study for its target: projected from what the study's cluster measured, until a study on the target
    confirms it or changes it."""

    verdict: Literal["projected", "confirmed", "changed"] = "projected"
    """Kind of the answer. `projected`: nothing decided on the target. `confirmed`: pairs of runs there confirmed `best`.
    `changed`: the first of `runners_up` is the answer there (`confirmation` says why)."""
    cluster: Cluster
    """Target cluster, completed with the facts about its GPUs that the study's cluster states."""
    global_batch: int
    """Samples per optimizer step on the target."""
    measured_gpus: int
    """Number of GPUs of the study's cluster."""
    doublings: float
    """Number of doublings of the GPUs between the study's cluster and the target."""
    best: ProjectedConfig
    """Fastest configuration on the target by its expected speed, among those that should fit."""
    runners_up: tuple[ProjectedConfig, ...] = ()
    """Next configurations by expected speed on the target."""
    order_changes: bool
    """Whether the fastest configuration on the target comes from another trial than the fastest on the study's
    cluster."""
    sizes: tuple[BestAtSize, ...] = ()
    """Fastest configuration of each size, from the study's cluster to the target; the trial changes where another strategy
    takes over."""
    projected: int
    """Number of configurations on the target that were projected."""
    only_at_target: int
    """Number of configurations that fit on the target only; they were not measured."""
    too_large: int
    """Number of measured configurations that are predicted not to fit on the target."""
    without_layout: tuple[int, ...] = ()
    """Numbers of the measured trials, fastest first, that are not projected because their parallel groups do not divide
    the target's ranks."""
    rehearsals: tuple[TargetRehearsal, ...] = ()
    """Rehearsals of the fastest configurations at the target's number of ranks, in the order in which they were made.
    Rejected ones are neither `best` nor runners-up. Empty where the budget leaves rehearsals out, and in answers of older
    releases."""
    notes: tuple[str, ...] = ()
    """Assumptions behind the projection, and which of them are not measured."""
    rung_test: RungTest | None = None
    """Comparison of the speeds projected from smaller clusters with those that the study measured; null where no
    earlier study measured the same work on fewer GPUs."""
    confirmation: TargetConfirmation | None = None
    """Comparison of the first two choices on the target itself; null until a study has run there (`confirm.sbatch`)."""

    @property
    def answer(self) -> ProjectedConfig:
        """Configuration for the target: the fastest projected one, unless runs on the target changed the answer."""
        return self.runners_up[0] if self.verdict == "changed" else self.best

    @property
    def rehearsal_of_answer(self) -> TargetRehearsal | None:
        """Return the rehearsal of the configuration that is the answer for the target; None if it was not rehearsed."""
        return next((one for one in self.rehearsals if one.config == self.answer.config), None)
