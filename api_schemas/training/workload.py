"""Schema of the workload: every setting that determines the numeric results of training and is therefore never
searched. All trials of one study train the same workload; configurations change only speed and memory."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from shardtune.api_schemas.base import Dtype, Schema
from shardtune.api_schemas.names import PrecisionName
from shardtune.api_schemas.protocol import Since
from shardtune.api_schemas.training.adapters import Adapter
from shardtune.api_schemas.training.float8 import FLOAT8_SINCE, Float8Recipe, check_workload
from shardtune.api_schemas.training.optimizers import AdamW, Optimizer, check_masters
from shardtune.api_schemas.training.sample_lengths import DATA_SINCE, SampleLengths, check_lengths
from shardtune.api_schemas.training.sample_plan import SamplePlan, plan_samples

MOST_SAMPLES = 1_000_000
"""Maximum number of samples in one optimizer step."""
SHORTEST_SEQUENCE = 8
"""Minimum sequence length in tokens."""


class Precision(Schema):
    """Dtypes with which a model is trained: of weights, of the computation, and of the reduction of gradients. They
    mean the same for every backend."""

    name: PrecisionName = "own"
    """Name of the precision, such as `bf16-mixed`. By default it is the name of the known precision with the same
    dtypes, or `own` if there is none."""
    master_dtype: Dtype
    """Dtype of the master weights that the optimizer updates, and of the optimizer state."""
    compute_dtype: Dtype
    """Dtype of weights and activations in the forward and backward pass."""
    reduce_dtype: Dtype
    """Dtype of gradients while they are accumulated and reduced across ranks."""
    autocast: bool = False
    """Whether weights keep the master dtype, and `torch.autocast` casts the inputs of each matrix product. Norms,
    softmax and residuals then stay in float32."""

    @property
    def weights_dtype(self) -> Dtype:
        """Dtype in which a backend stores and gathers weights for the forward and backward pass. Gradients have the
        same dtype."""
        return self.master_dtype if self.autocast else self.compute_dtype

    @property
    def has_float32_weights(self) -> bool:
        """Whether weights are float32 in the forward and backward pass."""
        return self.weights_dtype == "float32"

    @property
    def computes_in_float32(self) -> bool:
        """Whether the forward and backward pass compute in float32."""
        return self.compute_dtype == "float32"

    @property
    def computes_in_bfloat16(self) -> bool:
        """Whether the forward and backward pass compute in bfloat16, with or without autocast."""
        return self.compute_dtype == "bfloat16"

    @property
    def reduces_in_float32(self) -> bool:
        """Whether gradients are accumulated and reduced in float32."""
        return self.reduce_dtype == "float32"

    @property
    def mixes_bfloat16(self) -> bool:
        """Whether computation in bfloat16 stands beside float32 masters, which other programs call bf16 or mixed
        precision."""
        return self.computes_in_bfloat16 and not self.has_low_states

    @property
    def is_float32_throughout(self) -> bool:
        """Whether no value is rounded below float32."""
        return self.compute_dtype == self.reduce_dtype == self.master_dtype == "float32"

    @property
    def has_low_states(self) -> bool:
        """Whether master weights and optimizer states are kept in a dtype with fewer bits than float32."""
        return self.master_dtype != "float32"

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is multiplied by a dynamic scale before backward, because small gradients would become zero
        in float16."""
        return self.compute_dtype == "float16"

    @property
    def is_chosen_only_by_name(self) -> bool:
        """Whether `auto` never selects this precision, so that it is used only if a study states it or a baseline
        implies it."""
        return self.has_low_states or self.scales_loss

    @model_validator(mode="before")
    @classmethod
    def _known_by_its_dtypes(cls, precision: object) -> object:
        """Set the name of the precision to that of the known one with the same dtypes. Equal dtypes then always give
        the same tuning target (model, workload, cluster)."""
        if not isinstance(precision, Mapping) or "name" in precision:
            return precision
        values = {"autocast": False, **precision}
        same = (named.name for named in PRECISIONS.values() if all(values.get(d) == getattr(named, d) for d in _DTYPES))
        return {**precision, "name": next(same, "own")}

    @model_validator(mode="after")
    def _autocast_comes_out(self) -> Self:
        """Reject autocast settings that cannot work. Autocast must cast to a dtype with fewer bits for matrix products,
        and gradients must have the dtype of the weights before casting."""
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

    @model_validator(mode="after")
    def _float16_in_computation_alone(self) -> Self:
        """Reject float16 in any precision other than `fp16-mixed`. Only there are gradients divided by the loss scale
        in float32."""
        kept = {"master_dtype": self.master_dtype, "reduce_dtype": self.reduce_dtype}
        low = [f"{name} ({dtype})" for name, dtype in kept.items() if dtype != "float32"]
        stated = [*low, *(["autocast (true)"] if self.autocast else [])]
        if "float16" in kept.values() or (self.compute_dtype == "float16" and stated):
            raise ValueError(
                f"{', '.join(stated)} with compute_dtype ({self.compute_dtype}): float16 is trained with float32 masters and "
                "reduction, and weights that are cast; use precision 'fp16-mixed'"
            )
        return self

    def check_low_states(self) -> None:
        """Reject optimizer states in a dtype with fewer bits than float32 if computation or reduction has another
        dtype. Backends would then train differently: FSDP ignores the dtype of the reduction, and DeepSpeed the dtype
        of the computation.

        New studies are checked. Stored ones are not, since earlier releases ran such dtypes.

        Raises:
            ValueError: the dtypes differ.
        """
        others = {"compute_dtype": self.compute_dtype, "reduce_dtype": self.reduce_dtype}
        if self.has_low_states and any(dtype != self.master_dtype for dtype in others.values()):
            stated = ", ".join(f"{name} ({dtype})" for name, dtype in others.items() if dtype != self.master_dtype)
            raise ValueError(
                f"{stated} with master_dtype ({self.master_dtype}): states below float32 need one dtype throughout; use "
                "precision 'bf16-true', or master_dtype 'float32'"
            )


_DTYPES = ("master_dtype", "compute_dtype", "reduce_dtype", "autocast")
PRECISIONS: dict[str, Precision] = {
    "bf16-mixed": Precision(
        name="bf16-mixed", master_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32"
    ),
    "bf16-autocast": Precision(
        name="bf16-autocast", master_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32", autocast=True
    ),
    "bf16-true": Precision(
        name="bf16-true", master_dtype="bfloat16", compute_dtype="bfloat16", reduce_dtype="bfloat16"
    ),
    "fp16-mixed": Precision(name="fp16-mixed", master_dtype="float32", compute_dtype="float16", reduce_dtype="float32"),
    "fp32": Precision(name="fp32", master_dtype="float32", compute_dtype="float32", reduce_dtype="float32"),
}


LOW_STATES_SINCE = 2
"""First protocol version whose workers can keep optimizer states in fewer than 32 bits with every backend."""
FP16_SINCE = 2
"""First protocol version whose workers train in float16 with a dynamic loss scale."""
AUTO = "auto"
"""Value `auto` of a precision in a request: the precision is chosen for the device. null has the same meaning."""


def _by_name(value: object) -> object:
    """Replace the name of a known precision by its dtypes. If dtypes are given together with a name, drop the name and
    keep the dtypes. Any other value is returned unchanged, to be validated later."""
    if isinstance(value, Mapping) and value.get("name") in tuple(PRECISIONS):
        return {name: dtype for name, dtype in value.items() if name != "name"}
    if not isinstance(value, str):
        return value
    if value not in PRECISIONS:
        raise ValueError(
            f"precision ({value!r}) is unknown; use one of {', '.join(PRECISIONS)}, {AUTO} where the device may decide, "
            "or spell out its dtypes"
        )
    return PRECISIONS[value]


StatedPrecision = Annotated[Precision, BeforeValidator(_by_name)]
"""Precision as an object with its dtypes, or by its name, such as `"bf16-mixed"`."""
ChosenPrecision = Annotated[
    Precision | None,
    BeforeValidator(
        lambda value: None if value == AUTO else _by_name(value),
        json_schema_input_type=Precision
        | Literal["auto", "bf16-mixed", "bf16-autocast", "bf16-true", "fp16-mixed", "fp32"]
        | None,
    ),
]
"""Precision as an object with its dtypes, or by its name, such as `"bf16-mixed"`. If null or `auto`, it is bf16-mixed
if the device computes in bfloat16 natively, and fp32 otherwise."""


class WorkloadRequest(Schema):
    """Workload in a request, whose precision may still be `auto` (chosen for the device)."""

    sequence_length: int = Field(ge=SHORTEST_SEQUENCE, le=4_194_304)
    """Sequence length in tokens: the length of every sample, or with `data` the most that a sample may have. If samples
    are packed, it is the length of a row."""
    global_batch: int = Field(ge=1, le=MOST_SAMPLES)
    """Number of samples per optimizer step (of rows, if samples are packed). It equals micro batch × gradient
    accumulation × number of data-parallel groups."""
    precision: ChosenPrecision = None
    """Precision of training: `bf16-mixed`, `bf16-autocast`, `bf16-true`, `fp16-mixed`, `fp32`, or explicit dtypes. If
    null or `auto`, it is bf16-mixed if the device supports bfloat16 natively, and fp32 otherwise."""
    optimizer: Optimizer = AdamW()
    """Optimizer as an object with its settings, whose `kind` is AdamW if not stated, or as its kind alone, such as
    `"muon"`. Settings that are left out have documented defaults."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Global L2 norm to which gradients are clipped; null means that they are not clipped."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation, by the name that transformers uses (`attn_implementation`)."""
    loss: Literal["cross_entropy"] = "cross_entropy"
    """Loss function: next-token cross entropy, averaged over the tokens of the global batch."""
    adapter: Adapter = None
    """Adapter: the part of the model that is trained while all other weights stay frozen. Its `kind` is `lora` or
    `last_layers`. Frozen weights are kept in the dtype of the computation. If null, all weights are trained."""
    data: Annotated[SampleLengths | None, Since(DATA_SINCE)] = None
    """Lengths of the samples, if they differ, as in most fine-tuning. If null, every sample has `sequence_length`
    tokens."""
    float8: Annotated[Float8Recipe | None, Since(FLOAT8_SINCE)] = None
    """Scaling with which the linear layers of the model's blocks multiply in float8 (torchao's recipe). `tensorwise`
    has one scale per tensor; `rowwise` has one per row, which rounds less and costs more. Embeddings, output head,
    weights, gradients and optimizer states keep the precision's dtypes. If null, float8 is not used."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Random seed from which the model's weights and the data are generated."""

    @model_validator(mode="after")
    def _samples_that_fit(self) -> Self:
        check_lengths(self.data, self.sequence_length, self.global_batch)
        return self

    @model_validator(mode="after")
    def _elementwise_optimizer(self) -> Self:
        """Reject an optimizer that updates whole matrices together with an adapter. No test has shown that all backends
        train this combination equally."""
        if self.adapter is not None and self.optimizer.needs_matrices:
            raise ValueError(
                f"optimizer.kind ({self.optimizer.kind!r}) updates whole matrices, which was not checked with adapter "
                f"({self.adapter.describe()}); use adamw, or leave out adapter"
            )
        return self

    @model_validator(mode="after")
    def _masters_of_the_optimizer(self) -> Self:
        precision = self.precision
        check_masters(
            self.optimizer, *((None, AUTO) if precision is None else (precision.master_dtype, precision.name))
        )
        return self

    @model_validator(mode="after")
    def _float8_that_trains(self) -> Self:
        check_workload(self.float8, self.sequence_length, self.adapter, self.data)
        return self

    @property
    def tokens_per_step(self) -> float:
        """Number of tokens in one global batch (one optimizer step), without padding. If the samples differ in length
        (`data`), it is the mean over the steps."""
        plan = self.sample_plan
        return self.global_batch * self.sequence_length if plan is None else plan.real_tokens

    @property
    def sample_plan(self) -> SamplePlan | None:
        """Plan that says which samples each step trains; None if all samples have `sequence_length` tokens."""
        data, length = self.data, self.sequence_length
        return None if data is None else plan_samples(data, self.global_batch, self.seed, length)

    @property
    def data_notes(self) -> tuple[str, ...]:
        """Sentences about samples of the data that do not occur in the timed steps, or occur too rarely."""
        plan = self.sample_plan
        return () if plan is None or plan.note is None else (plan.note,)

    @property
    def steps_per_cycle(self) -> int:
        """Number of steps that are timed together if samples differ in length, because their lengths repeat only after
        so many steps; 1 if all samples have one length."""
        plan = self.sample_plan
        return 1 if plan is None else plan.steps

    @property
    def longest_row(self) -> int:
        """Number of tokens in the longest row of a micro batch, padding included. It decides the peak of the memory."""
        data = self.data
        return self.sequence_length if data is None or data.is_packed else data.padded(data.longest)

    @property
    def attended_length(self) -> int:
        """Sample length at which a token costs as many FLOPs as the tokens of the timed steps do on average."""
        plan = self.sample_plan
        return self.sequence_length if plan is None else max(1, round(plan.attended))

    def with_precision(self, precision: Precision) -> "Workload":
        """Return the complete workload: this request with the given precision in place of the requested one."""
        return Workload(
            **{name: getattr(self, name) for name in WorkloadRequest.model_fields} | {"precision": precision}
        )


class Workload(WorkloadRequest):
    """Workload with a precision that has been decided. It is the same for every configuration of a study."""

    precision: StatedPrecision = PRECISIONS["bf16-mixed"]
    """Dtypes of the training."""


class IndivisibleBatch(ValueError):
    """Error for a global batch that the ranks do not divide."""


def gradient_accumulation(global_batch: int, micro_batch: int, data_parallel_size: int) -> int:
    """Return the number of micro batches per optimizer step on each rank.

    Raises:
        IndivisibleBatch: the global batch is not divisible by micro batch × data-parallel size; the message gives the
            nearest valid global batches.
    """
    step = micro_batch * data_parallel_size
    if global_batch % step == 0:
        return global_batch // step
    lower, upper = global_batch // step * step, (global_batch // step + 1) * step
    choices = f"{lower} or {upper}" if lower else f"{upper}"
    raise IndivisibleBatch(
        f"global_batch ({global_batch}) must be a multiple of micro_batch × data-parallel size "
        f"({micro_batch} × {data_parallel_size} = {step}); try {choices}"
    )
