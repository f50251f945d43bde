"""Schemas of optimizers: settings that change what is trained, and the state that each optimizer keeps."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag

from shardtune.api_schemas.base import Schema


class OptimizerSchema(Schema):
    """Interface of every optimizer, used by trainers, the predictor, the exports and pages."""

    kind: str
    title: ClassVar[str]
    """Name of the optimizer for people."""
    since: ClassVar[int]
    """First protocol version whose workers know the optimizer."""
    needs_matrices: ClassVar[bool] = False
    """Whether an update needs a whole matrix. If False, the update is elementwise, so that any shard can be updated by
    itself."""
    rounds_updates: ClassVar[bool] = False
    """Whether updates are computed in a dtype with fewer bits than that of the master weights. The results of the
    backends then agree less closely."""

    excluded: ClassVar[Mapping[str, str]] = {}
    """Reasons why some backends cannot train with the optimizer although it is elementwise, by the name of the
    backend."""
    offloads: ClassVar[bool] = True
    """Whether the optimizer can update states that are offloaded to the host."""
    package: ClassVar[str | None] = None
    """Python package that provides the optimizer; None if torch does."""
    extra: ClassVar[str | None] = None
    """Extra of the package `shardtune` that also installs the optimizer's package."""
    master_dtype: ClassVar[str | None] = None
    """Dtype that master weights must have for the optimizer to update them. If None, it updates master weights of every
    dtype."""

    def state_bytes(self, elements: float, matrix_elements: float, master: float) -> float:
        """Return the number of bytes of state that the optimizer keeps for `elements` trained parameter elements.
        `matrix_elements` of them are in the weight matrices of blocks; `master` is the number of bytes of a master
        weight."""
        raise NotImplementedError

    def to_training_arguments(self) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) for this optimizer. If Trainer does
        not have it, they are those of the AdamW that Trainer uses instead."""
        raise NotImplementedError

    @property
    def in_trainer(self) -> bool:
        """Whether Hugging Face's Trainer offers this optimizer (in `TrainingArguments.optim`)."""
        return True

    @classmethod
    def from_adamw(cls, adamw: "AdamW") -> Self:
        """Return an optimizer of this kind whose updates have the same size as those of the given AdamW."""
        raise NotImplementedError

    def to_adamw(self) -> "AdamW":
        """Return the AdamW whose updates have the same size as those of this optimizer."""
        raise NotImplementedError


class AdamSettings(OptimizerSchema):
    """Settings that are common to all kinds of AdamW."""

    trainer_name: ClassVar[str]
    """Value of the field `optim` in Hugging Face `TrainingArguments` that selects this optimizer."""
    lr: float = Field(default=3e-4, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)

    def to_training_arguments(self) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` for this AdamW."""
        return {
            "learning_rate": self.lr,
            "adam_beta1": self.beta1,
            "adam_beta2": self.beta2,
            "adam_epsilon": self.eps,
            "weight_decay": self.weight_decay,
            "optim": self.trainer_name,
        }

    @classmethod
    def from_adamw(cls, adamw: "AdamW") -> Self:
        """Return an AdamW of this kind with the settings of the given AdamW."""
        return cls(**adamw.model_dump(exclude={"kind"}))

    def to_adamw(self) -> "AdamW":
        """Return the AdamW whose learning rate, weight decay and other settings these are."""
        return AdamW(**{name: getattr(self, name) for name in AdamSettings.model_fields if name != "kind"})


class AdamW(AdamSettings):
    """AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019). Every backend can train with it."""

    title: ClassVar[str] = "AdamW"
    trainer_name: ClassVar[str] = "adamw_torch_fused"
    since: ClassVar[int] = 1
    kind: Literal["adamw"] = "adamw"

    def state_bytes(self, elements: float, matrix_elements: float, master: float) -> float:
        """Return the bytes of AdamW's state: two moments of each element in the master weights' dtype."""
        return 2.0 * master * elements


_DTENSORS = "bitsandbytes 0.50 cannot update the shards of DTensors"
_FLAT_STATE = "FSDP1 cannot save states that are not shaped like its flat parameters"


class AdamW8bit(AdamSettings):
    """AdamW whose moments are kept in 8 bits (Dettmers et al. 2022), by bitsandbytes. DDP and DeepSpeed ZeRO can train
    with it."""

    title: ClassVar[str] = "8-bit AdamW"
    trainer_name: ClassVar[str] = "adamw_bnb_8bit"
    package: ClassVar[str | None] = "bitsandbytes"
    extra: ClassVar[str | None] = "8bit"
    excluded: ClassVar[Mapping[str, str]] = {"fsdp2": _DTENSORS, "fsdp1": _FLAT_STATE}
    offloads: ClassVar[bool] = False
    rounds_updates: ClassVar[bool] = True
    since: ClassVar[int] = 2
    kind: Literal["adamw-8bit"] = "adamw-8bit"

    def state_bytes(self, elements: float, matrix_elements: float, master: float) -> float:
        """Return the bytes of two moments of one byte each, and of one float32 scale for every 256 elements. Tensors
        with fewer than 4,096 elements, such as norms, keep moments in float32; they are so few that they are not
        counted."""
        return 2.0 * elements * (1.0 + 4.0 / EIGHT_BIT_BLOCK)


class AdamWBf16(AdamSettings):
    """AdamW whose weights and moments are in bfloat16. Each is rounded up or down at random (stochastic rounding), so
    that updates smaller than a weight's last digit are kept on average. Every backend can train with it, in the
    precision `bf16-true`."""

    title: ClassVar[str] = "AdamW with stochastic rounding"
    trainer_name: ClassVar[str] = "adamw_torch_fused"
    offloads: ClassVar[bool] = False
    rounds_updates: ClassVar[bool] = True
    master_dtype: ClassVar[str | None] = "bfloat16"
    since: ClassVar[int] = 2
    kind: Literal["adamw-bf16"] = "adamw-bf16"

    def state_bytes(self, elements: float, matrix_elements: float, master: float) -> float:
        """Return the bytes of two moments in bfloat16."""
        return 2.0 * 2.0 * elements

    @property
    def in_trainer(self) -> bool:
        """Whether Hugging Face's Trainer offers this optimizer. It does not: transformers 5.23 has no stochastic
        rounding."""
        return False


EIGHT_BIT_BLOCK = 256
"""Number of elements that share one scale in the blockwise quantisation of bitsandbytes (`Optimizer2State.init_state`,
version 0.50)."""


class Muon(OptimizerSchema):
    """Muon, an optimizer with momentum and orthogonalised updates (Jordan 2024). It updates the matrices of blocks;
    AdamW updates embeddings, output head, norms, biases and stacked experts. DDP and FSDP2 can train with it."""

    title: ClassVar[str] = "Muon"
    needs_matrices: ClassVar[bool] = True
    offloads: ClassVar[bool] = False
    rounds_updates: ClassVar[bool] = True
    since: ClassVar[int] = 1
    kind: Literal["muon"] = "muon"
    lr: float = Field(default=3e-4, gt=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay rate of the momentum."""
    nesterov: bool = True
    """Whether to use Nesterov's momentum, which applies the momentum once more to the current gradient."""
    ns_steps: int = Field(default=5, ge=1, le=99)
    """Number of Newton-Schulz iterations that orthogonalise an update. Each iteration takes three matrix products in
    bf16."""
    weight_decay: float = Field(default=0.1, ge=0)
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = "match_rms_adamw"
    """Rule by which the learning rate depends on the shape of a matrix, by its name in torch. `match_rms_adamw` gives
    updates of the same size as AdamW's, so that a learning rate tuned for AdamW remains right. `original` is Jordan's
    rule, with learning rates of about 0.02."""
    adamw: AdamW = AdamW()
    """Settings of the AdamW that updates all parameters which Muon does not update."""

    def state_bytes(self, elements: float, matrix_elements: float, master: float) -> float:
        """Return the bytes of optimizer state: Muon's momentum for the matrices, and AdamW's moments for all other
        parameters."""
        return master * matrix_elements + self.adamw.state_bytes(elements - matrix_elements, 0.0, master)

    def to_training_arguments(self) -> dict[str, Any]:
        """Return the fields of `TrainingArguments` for AdamW, which Trainer then uses for all parameters."""
        return self.adamw.to_training_arguments()

    @property
    def in_trainer(self) -> bool:
        """Whether Hugging Face's Trainer offers this optimizer. It does not: transformers 5.23 has no Muon."""
        return False

    @classmethod
    def from_adamw(cls, adamw: AdamW) -> Self:
        """Return a Muon with the learning rate and weight decay of the given AdamW, which also updates the parameters
        that are no matrices."""
        return cls(lr=adamw.lr, weight_decay=adamw.weight_decay, adamw=adamw)

    def to_adamw(self) -> AdamW:
        """Return the AdamW that updates all parameters except the weight matrices of the transformer blocks."""
        return self.adamw


DEFAULT_OPTIMIZER = "adamw"
"""Kind of the optimizer in workloads that state none, and in stored workloads whose optimizer has no kind."""
AnyOptimizer = AdamW | AdamW8bit | AdamWBf16 | Muon
OPTIMIZERS: dict[str, AnyOptimizer] = {
    "adamw": AdamW(),
    "adamw-8bit": AdamW8bit(),
    "adamw-bf16": AdamWBf16(),
    "muon": Muon(),
}
"""Optimizers by kind, each with its documented defaults."""


def check_masters(optimizer: OptimizerSchema, master_dtype: str | None, precision_name: str) -> None:
    """Reject master weights in a dtype that the optimizer cannot update. If `master_dtype` is None, the device decides
    it later, and nothing is rejected.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    if optimizer.master_dtype in (None, master_dtype):
        return
    kept = f"keeps weights in {master_dtype}" if master_dtype else "never keeps weights in bfloat16"
    raise ValueError(
        f"optimizer.kind ({optimizer.kind!r}) rounds {optimizer.master_dtype} weights, but precision ({precision_name}) {kept}; "
        f"use precision 'bf16-true', or optimizer {DEFAULT_OPTIMIZER!r}"
    )


def replaced(current: AnyOptimizer, kind: str) -> AnyOptimizer:
    """Return the optimizer of the given kind for a workload that states another one. The learning rate and weight decay
    of the stated one are taken over where possible, so that updates keep their size."""
    return current if current.kind == kind else type(OPTIMIZERS[kind]).from_adamw(current.to_adamw())


def _with_kind(value: object) -> object:
    """Convert the kind of an optimizer, such as `muon`, into the optimizer with its defaults. Settings that were stored
    without a kind become AdamW's."""
    if isinstance(value, OptimizerSchema):
        return value
    kind = value.get("kind", DEFAULT_OPTIMIZER) if isinstance(value, Mapping) else value
    if not isinstance(kind, str) or kind not in OPTIMIZERS:
        field = "optimizer.kind" if isinstance(value, Mapping) else "optimizer"
        raise ValueError(
            f"{field} ({kind!r}) is unknown; use one of {', '.join(OPTIMIZERS)}, or an object with its settings"
        )
    return {**value, "kind": kind} if isinstance(value, Mapping) else OPTIMIZERS[kind]


def _class_name(value: object) -> str:
    """Return the name of the optimizer's class for validated or raw settings. Pydantic selects the member of the union
    by this name, and paths in error messages leave it out."""
    return type(value if isinstance(value, OptimizerSchema) else OPTIMIZERS[str(value["kind"])]).__name__  # type: ignore[index]


_Settings = Annotated[
    Annotated[AdamW, Tag("AdamW")]
    | Annotated[AdamW8bit, Tag("AdamW8bit")]
    | Annotated[AdamWBf16, Tag("AdamWBf16")]
    | Annotated[Muon, Tag("Muon")],
    Discriminator(_class_name),
]
Optimizer = Annotated[_Settings, BeforeValidator(_with_kind, json_schema_input_type=_Settings | str)]
"""Optimizer as an object with its settings, or as its kind alone, such as `"adamw"`."""


def unsaid_kind(optimizer: OptimizerSchema) -> set[str]:
    """Return the fields of the optimizer to leave out of a tuning target's key. This is `kind` for AdamW, which earlier
    releases did not store, so that their keys remain valid."""
    return {"kind"} if isinstance(optimizer, AdamW) else set()
