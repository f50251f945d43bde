"""Schemas of optimizers: settings that change what is trained, and the state that each optimizer keeps."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from shardtune.api_schemas.base import Schema


class OptimizerSchema(Schema):
    """Interface of every optimizer, used by trainers, the predictor, the exports and pages."""

    kind: str
    title: ClassVar[str]
    """Name of the optimizer for people."""
    needs_matrices: ClassVar[bool] = False
    """Whether an update needs a whole matrix. Otherwise it is elementwise, so that any shard can be updated alone."""
    rounds_updates: ClassVar[bool] = False
    """Whether updates are computed in a lower dtype than the master weights', so that backends agree less closely."""

    def state_values(self, elements: float, matrix_elements: float) -> float:
        """Return the number of values that the optimizer keeps for the trained parameters, each in the dtype of the
        master weights. `matrix_elements`: elements of the matrices in blocks, a part of `elements`."""
        raise NotImplementedError

    def to_training_arguments(self) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` (transformers 5) for this optimizer, or for the AdamW that
        Trainer uses in its place where it has no such optimizer."""
        raise NotImplementedError

    @property
    def in_trainer(self) -> bool:
        """Whether Hugging Face's Trainer has the optimizer by name."""
        return True


class AdamW(OptimizerSchema):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), for every backend."""

    title: ClassVar[str] = "AdamW"
    kind: Literal["adamw"] = "adamw"
    lr: float = Field(default=3e-4, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)

    def state_values(self, elements: float, matrix_elements: float) -> float:
        """Return the number of values that AdamW keeps: two moments of each element."""
        return 2.0 * elements

    def to_training_arguments(self) -> dict[str, Any]:
        """Return the fields of Hugging Face `TrainingArguments` for AdamW."""
        return {
            "learning_rate": self.lr,
            "adam_beta1": self.beta1,
            "adam_beta2": self.beta2,
            "adam_epsilon": self.eps,
            "weight_decay": self.weight_decay,
            "optim": "adamw_torch_fused",
        }


DEFAULT_OPTIMIZER = "adamw"
"""Kind of the optimizer of workloads that name none, also of those that were stored without a kind."""
OPTIMIZERS: dict[str, OptimizerSchema] = {"adamw": AdamW()}
"""Optimizers with their documented defaults, by kind."""


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


_Settings = AdamW
Optimizer = Annotated[_Settings, BeforeValidator(_with_kind, json_schema_input_type=_Settings | str)]
"""Optimizer in full, or by its kind."""


def unsaid_kind(optimizer: OptimizerSchema) -> set[str]:
    """Return the fields to leave out of a tuning target's key: AdamW's `kind`, which the keys of stored answers lack."""
    return {"kind"} if isinstance(optimizer, AdamW) else set()
