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
    """Whether an update needs a whole matrix. Otherwise it is elementwise, so that any shard can be updated alone."""
    rounds_updates: ClassVar[bool] = False
    """Whether updates are computed in a lower dtype than the master weights', so that backends agree less closely."""

    excluded: ClassVar[Mapping[str, str]] = {}
    """Reasons why backends cannot train with the optimizer although it is elementwise, by the backend's kind."""
    offloads: ClassVar[bool] = True
    """Whether the optimizer can update states that are offloaded to the host."""
    package: ClassVar[str | None] = None
    """Python package, other than torch, that provides the optimizer."""
    extra: ClassVar[str | None] = None
    """Extra of `shardtune` that installs the package."""
    master_dtype: ClassVar[str | None] = None
    """Only dtype of master weights that the optimizer can update; None: it can update those of every precision."""

    def state_bytes(self, elements: float, matrix_elements: float, master: float) -> float:
        """Return the bytes of the state that the optimizer keeps for the trained parameters. `matrix_elements`: elements
        of the matrices in blocks, a part of `elements`; `master`: bytes of a master weight."""
        raise NotImplementedError

    def to_training_arguments(self) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) for this optimizer, or for the AdamW that
        Trainer uses in its place where it has no such optimizer."""
        raise NotImplementedError

    @property
    def in_trainer(self) -> bool:
        """Whether Hugging Face's Trainer has the optimizer by name."""
        return True

    @classmethod
    def from_adamw(cls, adamw: "AdamW") -> Self:
        """Return the optimizer whose updates have the size of this AdamW's."""
        raise NotImplementedError

    def to_adamw(self) -> "AdamW":
        """Return the AdamW whose updates have the size of this optimizer's."""
        raise NotImplementedError


class AdamSettings(OptimizerSchema):
    """Settings that every kind of AdamW has."""

    trainer_name: ClassVar[str]
    """Value of `optim` in Hugging Face `TrainingArguments`."""
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
        """Return this kind of AdamW with the settings of another."""
        return cls(**adamw.model_dump(exclude={"kind"}))

    def to_adamw(self) -> "AdamW":
        """Return the AdamW with these settings."""
        return AdamW(**{name: getattr(self, name) for name in AdamSettings.model_fields if name != "kind"})


class AdamW(AdamSettings):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), for every backend."""

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
    """AdamW with moments in 8 bits (Dettmers et al. 2022) by bitsandbytes, for DDP and DeepSpeed ZeRO."""

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
        """Return the bytes of two moments in one byte each, with a float32 scale for every 256 elements. Tensors below
        4,096 elements, such as norms, keep float32 moments, which are too few to count."""
        return 2.0 * elements * (1.0 + 4.0 / EIGHT_BIT_BLOCK)


class AdamWBf16(AdamSettings):
    """AdamW over bfloat16 weights and moments, each rounded up or down by chance (stochastic rounding), so that updates
    below a weight's last digit are kept on average. For every backend, with precision `bf16-true`."""

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
        """Whether Hugging Face's Trainer has the optimizer by name: transformers 5.23 has no stochastic rounding."""
        return False


EIGHT_BIT_BLOCK = 256
"""Elements that share one scale in bitsandbytes' blockwise quantisation (`Optimizer2State.init_state`, 0.50)."""


class Muon(OptimizerSchema):
    """Momentum whose update is orthogonalised (Jordan 2024), for matrices of blocks; AdamW for embeddings, output head,
    norms, biases and stacked experts. DDP and FSDP2 can train with it."""

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
    """Whether to update by Nesterov's momentum, which looks one step ahead."""
    ns_steps: int = Field(default=5, ge=1, le=99)
    """Number of Newton-Schulz iterations that orthogonalise an update, each three matrix products in bf16."""
    weight_decay: float = Field(default=0.1, ge=0)
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = "match_rms_adamw"
    """Rule that adjusts the learning rate to a matrix's shape (torch's name). `match_rms_adamw` gives updates the size of
    AdamW's, so that a learning rate tuned for AdamW stays right; `original` is Jordan's, with rates of about 0.02."""
    adamw: AdamW = AdamW()
    """Settings of AdamW for all other parameters."""

    def state_bytes(self, elements: float, matrix_elements: float, master: float) -> float:
        """Return the bytes of the optimizers' state: the momentum of matrices, AdamW's moments of the rest."""
        return master * matrix_elements + self.adamw.state_bytes(elements - matrix_elements, 0.0, master)

    def to_training_arguments(self) -> dict[str, Any]:
        """Return the fields of `TrainingArguments` for AdamW, which Trainer then uses for all parameters."""
        return self.adamw.to_training_arguments()

    @property
    def in_trainer(self) -> bool:
        """Whether Hugging Face's Trainer has the optimizer by name: transformers 5.23 has no Muon."""
        return False

    @classmethod
    def from_adamw(cls, adamw: AdamW) -> Self:
        """Return Muon at an AdamW's learning rate and weight decay, with this AdamW for the other parameters."""
        return cls(lr=adamw.lr, weight_decay=adamw.weight_decay, adamw=adamw)

    def to_adamw(self) -> AdamW:
        """Return the AdamW of the parameters that are no matrices."""
        return self.adamw


DEFAULT_OPTIMIZER = "adamw"
"""Kind of the optimizer of workloads that name none, also of those that were stored without a kind."""
AnyOptimizer = AdamW | AdamW8bit | AdamWBf16 | Muon
OPTIMIZERS: dict[str, AnyOptimizer] = {
    "adamw": AdamW(),
    "adamw-8bit": AdamW8bit(),
    "adamw-bf16": AdamWBf16(),
    "muon": Muon(),
}
"""Optimizers with their documented defaults, by kind."""


def check_masters(optimizer: OptimizerSchema, master_dtype: str | None, precision_name: str) -> None:
    """Reject master weights in a dtype that the optimizer does not update. `master_dtype`: None where the device decides.

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
    """Return the optimizer of a kind for a workload that states another: with its learning rate and weight decay where it
    has them, so that updates keep their size."""
    return current if current.kind == kind else type(OPTIMIZERS[kind]).from_adamw(current.to_adamw())


def _with_kind(value: object) -> object:
    """Replace a kind by the optimizer's defaults, and add AdamW's kind to settings that were stored without one."""
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
    """Return the class name of validated or raw settings, which selects the member of the union; paths in errors leave
    it out."""
    return type(value if isinstance(value, OptimizerSchema) else OPTIMIZERS[str(value["kind"])]).__name__  # type: ignore[index]


_Settings = Annotated[
    Annotated[AdamW, Tag("AdamW")]
    | Annotated[AdamW8bit, Tag("AdamW8bit")]
    | Annotated[AdamWBf16, Tag("AdamWBf16")]
    | Annotated[Muon, Tag("Muon")],
    Discriminator(_class_name),
]
Optimizer = Annotated[_Settings, BeforeValidator(_with_kind, json_schema_input_type=_Settings | str)]
"""Optimizer in full, or by its kind."""


def unsaid_kind(optimizer: OptimizerSchema) -> set[str]:
    """Return the fields to leave out of a tuning target's key: AdamW's `kind`, which the keys of stored answers lack."""
    return {"kind"} if isinstance(optimizer, AdamW) else set()
