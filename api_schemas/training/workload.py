"""Workload: everything that decides the numbers a training run produces, and so is never searched.

Strategies change speed and memory; two trials of one study train the same thing.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from shardtune.api_schemas.base import Dtype, Schema
from shardtune.api_schemas.names import PrecisionName

MOST_SAMPLES = 1_000_000
"""Most samples of one optimizer step."""


class Precision(Schema):
    """Dtype of each kind of value, for every backend alike."""

    name: PrecisionName = "own"
    """Name; left out: that of a known precision with these dtypes, else `own`."""
    master_dtype: Dtype
    """Dtype of the weights the optimizer updates, and of its state."""
    compute_dtype: Dtype
    """Dtype of weights and activations in forward and backward."""
    reduce_dtype: Dtype
    """Dtype of gradients while they are accumulated and reduced across ranks."""
    autocast: bool = False
    """Whether weights stay in the masters' dtype and `torch.autocast` casts at each product; norms, softmax,
    residuals stay float32."""

    @property
    def weights_dtype(self) -> Dtype:
        """Dtype in which a backend holds and gathers weights for forward and backward, and in which their gradients
        arise."""
        return self.master_dtype if self.autocast else self.compute_dtype

    @model_validator(mode="before")
    @classmethod
    def _known_by_its_dtypes(cls, precision: object) -> object:
        """Give spelt-out dtypes the name of the known precision that has them: the same tuning target, whoever wrote
        it."""
        if not isinstance(precision, Mapping) or "name" in precision:
            return precision
        values = {"autocast": False, **precision}
        same = (named.name for named in PRECISIONS.values() if all(values.get(d) == getattr(named, d) for d in _DTYPES))
        return {**precision, "name": next(same, "own")}

    @model_validator(mode="after")
    def _autocast_comes_out(self) -> Self:
        """Reject autocast settings that cannot work: it casts down for products, and gradients arise in the dtype of the
        weights it casts from."""
        if self.autocast and self.compute_dtype == self.master_dtype:
            raise ValueError(
                f"autocast (true) casts to compute_dtype ({self.compute_dtype}), which master_dtype is already; set it to false"
            )
        if self.autocast and self.reduce_dtype != self.master_dtype:
            raise ValueError(
                f"reduce_dtype ({self.reduce_dtype}) with autocast: gradients arise in master_dtype ({self.master_dtype}); "
                "make them equal"
            )
        return self


_DTYPES = ("master_dtype", "compute_dtype", "reduce_dtype", "autocast")
PRECISIONS: dict[str, Precision] = {
    "bf16-mixed": Precision(
        name="bf16-mixed", master_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32"
    ),
    "bf16-autocast": Precision(
        name="bf16-autocast", master_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32", autocast=True
    ),
    "fp32": Precision(name="fp32", master_dtype="float32", compute_dtype="float32", reduce_dtype="float32"),
}


AUTO = "auto"
"""Word for a precision that is left to the device; None in its place means the same."""


def _by_name(value: object) -> object:
    """Return a precision by its name; any other value is left to validation."""
    if not isinstance(value, str):
        return value
    if value not in PRECISIONS:
        raise ValueError(
            f"precision ({value!r}) is unknown; use one of {', '.join(PRECISIONS)}, {AUTO} where the device may decide, "
            "or spell out its dtypes"
        )
    return PRECISIONS[value]


StatedPrecision = Annotated[Precision, BeforeValidator(_by_name)]
"""Precision, or the name of one."""
ChosenPrecision = Annotated[
    Precision | None,
    BeforeValidator(
        lambda value: None if value == AUTO else _by_name(value),
        json_schema_input_type=Precision | Literal["auto", "bf16-mixed", "bf16-autocast", "fp32"] | None,
    ),
]
"""Precision or its name, or None (`auto`): bf16-mixed where the device computes in bfloat16 natively, else fp32."""


class AdamW(Schema):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), the optimizer of every backend."""

    lr: float = Field(default=3e-4, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)


class WorkloadRequest(Schema):
    """Workload as it is asked for: the precision may be left to the device."""

    sequence_length: int = Field(ge=8, le=4_194_304)
    """Tokens per sample."""
    global_batch: int = Field(ge=1, le=MOST_SAMPLES)
    """Samples per optimizer step = micro batch × gradient accumulation × data-parallel size."""
    precision: ChosenPrecision = None
    """Precision: `bf16-mixed`, `bf16-autocast`, `fp32` or dtypes spelt out; null or `auto`: bf16-mixed where the
    device has bfloat16, else fp32."""
    optimizer: AdamW = AdamW()
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Global L2 norm to which gradients are clipped; None leaves them alone."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention kernel, in transformers' words (`attn_implementation`)."""
    loss: Literal["cross_entropy"] = "cross_entropy"
    """Next-token cross entropy, averaged over the tokens of the global batch."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of weights and data."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one global batch."""
        return self.global_batch * self.sequence_length

    def with_precision(self, precision: Precision) -> "Workload":
        """Return the workload, once the precision is decided."""
        return Workload(
            **{name: getattr(self, name) for name in WorkloadRequest.model_fields} | {"precision": precision}
        )


class Workload(WorkloadRequest):
    """Training of one optimizer step, the same for every configuration of a study."""

    precision: StatedPrecision = PRECISIONS["bf16-mixed"]
    """The dtypes of training."""


def gradient_accumulation(global_batch: int, micro_batch: int, data_parallel_size: int) -> int:
    """Micro batches per optimizer step on each rank.

    Raises:
        ValueError: the product does not come out; names the nearest global batches that do.
    """
    step = micro_batch * data_parallel_size
    if global_batch % step == 0:
        return global_batch // step
    lower, upper = global_batch // step * step, (global_batch // step + 1) * step
    choices = f"{lower} or {upper}" if lower else f"{upper}"
    raise ValueError(
        f"global_batch ({global_batch}) must be a multiple of micro_batch × data-parallel size "
        f"({micro_batch} × {data_parallel_size} = {step}); try {choices}"
    )
