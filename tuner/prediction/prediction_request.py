"""Resolution of a prediction request: the cluster, the model's shape, and the sequence and dtypes where the request
leaves them open."""

from dataclasses import dataclass, replace
from functools import lru_cache

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.strategies.recipe_support import fp16_support
from shardtune.api_schemas.training import adapter_targets, attention_dtypes, float8_checks
from shardtune.api_schemas.training.adapters import quantization_of
from shardtune.api_schemas.training.float8 import Float8Recipe
from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, decide
from shardtune.api_schemas.training.optimizers import check_masters
from shardtune.api_schemas.training.quantization import Quantization, check_precision
from shardtune.api_schemas.training.sample_packing import models as packed_models
from shardtune.api_schemas.training.workload import MOST_SAMPLES, SHORTEST_SEQUENCE, Precision, Workload
from shardtune.api_schemas.trials.predictions import PredictionRequest
from shardtune.tuner.prediction import catalogue, traced_shape, trainable
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes import config_shape, own_shape
from shardtune.tuner.prediction.throughput import published_bias

DEFAULT_SEQUENCE = 4096
_SAMPLES_PER_RANK = 8
"""Samples per rank and step that are assumed for a request without a global batch; `shardtune tune` assumes the same
for a model given only as a `config.json`."""


@dataclass(frozen=True)
class ResolvedRequest:
    """Prediction request and the values derived from it before any configuration is evaluated."""

    request: PredictionRequest
    cluster: Cluster
    shape: ModelShape
    sequence: int
    precision: Precision
    precision_note: str | None

    def workload(self, global_batch: int) -> Workload:
        """Workload of every predicted configuration with this global batch."""
        return Workload(
            sequence_length=self.sequence,
            global_batch=global_batch,
            precision=self.precision,
            optimizer=self.request.optimizer,
            adapter=self.request.adapter,
            attention=self.request.attention,
            data=self.request.data,
            float8=self.request.float8,
        )

    @property
    def global_batch(self) -> int:
        """Number of samples in a step, the same for every compared configuration. It is the request's global batch if
        that is stated; otherwise it follows from the request's micro batch and accumulation, or from a default number
        of samples per rank."""
        micro_batch, accumulation = self.request.micro_batch, self.request.gradient_accumulation
        if self.request.global_batch is not None:
            return self.request.global_batch
        # Rounded up to whole micro batches, so that every strategy can be compared at this batch.
        passes = accumulation or -(-_SAMPLES_PER_RANK // micro_batch)
        ranks = self.cluster.world_size
        if ranks * micro_batch * passes > MOST_SAMPLES:
            raise ValueError(
                f"micro_batch ({micro_batch}) × {ranks} ranks × {passes} micro batches is more than {MOST_SAMPLES} samples a "
                "step; lower micro_batch or gradient_accumulation, or give global_batch"
            )
        return ranks * micro_batch * passes

    def batch_of(self, config: TrialConfig) -> int:
        """Number of samples per step for a configuration that is predicted in addition to the search space.

        Raises:
            ValueError: the configuration's micro batches do not divide the global batch.
        """
        request = self.request
        if request.configs and request.global_batch is None:
            return samples(config, self.cluster, request.gradient_accumulation or 1)
        config.accumulation(self.global_batch, self.cluster.world_size)
        return self.global_batch

    def notes(self) -> tuple[str, ...]:
        """Notes for the user on inputs of the prediction that were neither checked nor measured."""
        notes = [*config_shape.unknown_keys(self.request.model.trained_config)]
        window = traced_shape.window_note(self.request.model.trained_config, self.sequence)
        notes += [] if window is None else [window]
        if self.request.float8 is not None:
            notes.append(float8_note(self.request.float8, self.cluster.device))
        if self.precision.scales_loss and self.cluster.device == "cpu":
            notes.append(_NO_FLOAT16_RATE)
        quantization = quantization_of(self.request.adapter)
        if quantization is not None:
            notes.append(quantization_note(quantization, self.cluster.device))
        if self.request.data is not None:
            peak = "full rows" if self.request.data.is_packed else "the longest"
            notes.append(
                f"data: {self.request.data.describe()}; speeds count the samples' own tokens, memory is that of {peak}"
            )
        if isinstance(self.shape, traced_shape.TracedShape) and self.shape.estimated:
            notes.append(
                "parameters were counted on the built model; FLOPs and memory inside a block are those of a Llama block of the "
                "same size, which is a guess"
            )
        if self.shape.step_trace is not None:
            notes.append(
                "memory and work are those of one traced step of your own code with the CPU's kernels; kernels of a GPU may "
                "need other work space"
            )
            summary = self.request.model_summary
            notes += [] if summary is None or summary.note is None else [summary.note]
        if self.request.hardware is not None:
            return (*notes, "rates and links are those measured or entered for this hardware")
        if self.cluster.device == "cpu":
            return (*notes, "rates of CPU ranks are a guess; `shardtune measure-hardware` measures them")
        gpu = catalogue.on_cluster(self.cluster)
        bias = published_bias.note(gpu.architecture)
        return (*notes, *(f"{name}: {reason}" for name, reason in gpu.doubts), *([bias] if bias else []))


def resolve(request: PredictionRequest, device: DeviceDtypes | None = None) -> ResolvedRequest:
    """Resolve a prediction request: look up its cluster, model shape, sequence length and dtypes. `device`: dtypes that
    a worker found on the cluster's devices; without them, the catalogue's.

    Raises:
        NoClosedForm: the model has to be built to be counted, and the request has no model summary of it.
        ValueError: unknown hardware, a missing model field, a sequence beyond the model's.
    """
    cluster = cluster_of(request)
    _check_network(request, cluster)
    _check_batch(request, cluster)
    packed_models.check(request.data, request.model)
    shape = _resolve_shape(request)
    sequence = request.sequence_length or _default_sequence(request, shape)
    if shape.max_positions and sequence > shape.max_positions:
        raise ValueError(
            f"sequence_length ({sequence}) must not exceed the model's {shape.max_positions} positions; "
            "shorten it, or raise the positions in the model's config"
        )
    dtypes = device or _dtypes_of(request, cluster)
    precision, note = precision_of(request, dtypes)
    attention_dtypes.check(request.attention, precision)
    check_masters(request.optimizer, precision.master_dtype, precision.name)
    check_precision(precision.name, precision.autocast, quantization_of(request.adapter))
    if shape.step_trace is not None:
        own_shape.check_workload(shape.step_trace, sequence, precision)
    resolved = ResolvedRequest(request, cluster, shape, sequence, precision, note)
    fp16_support.check_workload(resolved.workload(resolved.global_batch), request.model)
    if request.float8 is not None:
        _check_float8(resolved, dtypes)
    return resolved


def _check_float8(resolved: ResolvedRequest, device: DeviceDtypes) -> None:
    """Reject float8 that the model, the precision or the device cannot train.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    recipe = resolved.request.float8
    float8_checks.check_model(resolved.request.model, recipe)
    float8_checks.check_precision(resolved.workload(resolved.global_batch), device=resolved.cluster.device)
    if not device.has_float8:
        raise ValueError(
            f"float8 ({recipe!r}) needs GPUs with float8 (compute capability 8.9), and {device.name} has {device.native}; "
            "leave out float8"
        )


_NO_FLOAT16_RATE = "no rate of float16 was measured on CPU ranks: speeds are predicted with products in bfloat16, and float16 may be far slower"


def float8_note(recipe: Float8Recipe, device: str) -> str:
    """Note on what is known about the speed of float8 where it is predicted."""
    if device == "cpu":
        return f"float8 ({recipe}): CPU ranks emulate it and are slower; the prediction leaves the emulation out"
    return (
        f"float8 ({recipe}): linear layers are predicted with the gain of published tensorwise runs on H100 with compiled blocks; "
        "without compile, and with rowwise, expect less"
    )


def quantization_note(quantization: Quantization, device: str) -> str:
    """Note on what is known about the speed with 4-bit base weights where it is predicted."""
    where = "; CPU ranks unpack slower than their memory allows" if device == "cpu" else ""
    return (
        f"adapter.quantization ({quantization}): the time to unpack weights is that of its memory traffic, which no published run "
        f"has checked, so that the speed's range is wider{where}"
    )


def cluster_of(request: PredictionRequest) -> Cluster:
    """Cluster of a request.

    Raises:
        ValueError: the cluster's short form (such as `8xh100`) names an unknown GPU.
    """
    return catalogue.parse_cluster(request.cluster) if isinstance(request.cluster, str) else request.cluster


def precision_of(request: PredictionRequest, device: DeviceDtypes | None = None) -> tuple[Precision, str | None]:
    """Precision of a request, chosen for the cluster's devices where the request leaves it open, and a note on the
    choice."""
    return decide(request.precision, [device or _dtypes_of(request, cluster_of(request))])


def _default_sequence(request: PredictionRequest, shape: ModelShape) -> int:
    if shape.step_trace is not None:
        return shape.step_trace.sequence_length
    if request.data is not None:
        return max(SHORTEST_SEQUENCE, request.data.padded(request.data.longest))
    return min(shape.max_positions or DEFAULT_SEQUENCE, DEFAULT_SEQUENCE)


def samples(config: TrialConfig, cluster: Cluster, accumulation: int) -> int:
    """Global batch, in samples, of a configuration with `accumulation` micro batches a step.

    Raises:
        ValueError: the global batch is larger than any workload may have.
    """
    groups = config.data_ranks(cluster.world_size)
    count = config.micro_batch * groups * accumulation
    if count > MOST_SAMPLES:
        raise ValueError(
            f"micro_batch ({config.micro_batch}) × {groups} groups of ranks × gradient_accumulation ({accumulation}) "
            f"is more than {MOST_SAMPLES} samples a step; lower one of them"
        )
    return count


def _check_batch(request: PredictionRequest, cluster: Cluster) -> None:
    accumulation, global_batch = request.gradient_accumulation, request.global_batch
    if accumulation is None or global_batch is None or request.configs:
        return
    samples_per_step = cluster.world_size * request.micro_batch * accumulation
    if samples_per_step != global_batch:
        raise ValueError(
            f"global_batch ({global_batch}) is not what {cluster.world_size} ranks × micro_batch ({request.micro_batch}) × "
            f"gradient_accumulation ({accumulation}) add up to ({samples_per_step}); leave out gradient_accumulation, or global_batch"
        )


def _check_network(request: PredictionRequest, cluster: Cluster) -> None:
    hardware = request.hardware
    is_known = cluster.inter_node_gb_per_s or (
        hardware and any(collective.nodes > 1 for collective in hardware.collectives)
    )
    if hardware is not None and cluster.nodes > 1 and not is_known:
        raise ValueError(
            f"cluster.inter_node_gb_per_s (null) is needed for {cluster.nodes} nodes: hardware was measured within one; "
            "enter the network's GB/s per node and direction"
        )


def _resolve_shape(request: PredictionRequest) -> ModelShape:
    model, model_summary = request.model, request.model_summary
    if model.is_own:
        return _own_shape(request)
    trainable.check(model)
    adapter_targets.check_model(request.adapter, model)
    reason = traced_shape.why_unpredictable(model.trained_config)
    if reason is not None:
        raise ValueError(reason)
    if model_summary is None:
        closed_form = _closed_form(config_shape.to_text(model.trained_config), model.name)
        return traced_shape.with_adapter(closed_form, model.model_type, request.adapter)
    shape = traced_shape.of_study(model, model_summary, request.adapter) if model_summary.blocks else None
    if shape is None:
        reason = model_summary.note or "its blocks or FLOPs were not counted"
        raise ValueError(f"model_summary: nothing can be predicted for {model.model_type} from it: {reason}")
    return shape


def _own_shape(request: PredictionRequest) -> ModelShape:
    model, model_summary = request.model, request.model_summary
    if model_summary is None:
        raise ValueError(
            "model is your own code, which has to be traced to be predicted: a study's worker does by itself, and "
            "`shardtune predict STUDY --allow-model NAME` does where your package is installed; `model_summary` in a "
            "request takes what either counted"
        )
    shape = own_shape.of_summary(model, model_summary)
    if shape is None:
        failure = model_summary.trace_failure
        raise ValueError(f"model_summary: {'no step of your own code was traced' if failure is None else failure.note}")
    return shape


@lru_cache(maxsize=64)
def _closed_form(config: str, name: str) -> ModelShape:
    fields = config_shape.from_text(config)
    # Where a worker has counted the parameters, the formulas' widths of blocks with experts still serve.
    config_shape.check_formula(fields)
    return config_shape.from_config(fields, name)


def _dtypes_of(request: PredictionRequest, cluster: Cluster) -> DeviceDtypes:
    catalogued = catalogue.dtypes_of(cluster)
    return catalogued if request.hardware is None else replace(catalogued, matmul_flops=request.hardware.matmul_flops)
