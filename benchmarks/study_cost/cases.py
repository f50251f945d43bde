"""Studies whose cost is simulated."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.study_cost.overheads import CPU, CUDA, CUDA_4_HOSTS, Overheads
from benchmarks.study_cost.truth import Errors
from shardtune.api_schemas.machines.hardware import Cluster, HardwareReport, MeasuredHardware
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.training.models import ModelSummary, preset
from shardtune.api_schemas.training.native_dtypes import decide
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.tuner.prediction import catalogue, traced_shape
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.prediction.shapes import config_shape
from shardtune.tuner.search import space
from shardtune.tuner.search.guided_sampler.pool import Pool
from shardtune.tuner.search.guided_sampler.predicted_rows import PredictionBasis

_EXAMPLES, _DATA = Path("examples"), Path("benchmarks/data")
_REAL = {"validation_runs": 14, "gpu_seconds_of_a_validation_run": round(180 / 14, 1)}
"""Real study of `make tune`, 3 min 56 s on a quiet machine (docs/measurements/main-job.md)."""
_LLAMA_70B: dict[str, Any] = {
    **preset("llama-3.1-8b").config,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}


@dataclass(frozen=True)
class Case:
    """One study: what is tuned, for which machine, and what its runs cost besides steps."""

    name: str
    spec: StudySpec
    cluster: Cluster
    summary: ModelSummary
    overheads: Overheads
    errors: Errors = field(default_factory=Errors)
    hardware: MeasuredHardware | None = None
    real: Mapping[str, float] | None = None
    """Figures of a real study of this case, with which the simulated ones are compared."""

    def varied(self, *, whole_steps: bool, compiles_anew: bool) -> "Case":
        """This case with whole steps in all runs, or without a cache of compiled graphs between runs."""
        costs, spec = self.overheads, self.spec
        if compiles_anew:
            costs = replace(costs, cached_compile_s=costs.compile_s)
        if whole_steps:
            spec = spec.model_copy(update={"budget": spec.budget.model_copy(update={"short_steps": False})})
        return replace(self, overheads=costs, spec=spec)

    @cached_property
    def shape(self) -> ModelShape:
        """Model's shape, from which the planner predicts."""
        shape = traced_shape.of_study(self.spec.model, self.summary, self.spec.workload.adapter)
        assert shape is not None, "the summary counts FLOPs"
        return shape

    @cached_property
    def search_space(self) -> space.Space:
        """Search space of the study."""
        return space.build(self.spec.workload, self.cluster, self.summary, self.spec.space, None)

    @cached_property
    def pool(self) -> Pool:
        """Candidates with their predictions; the same for all simulated studies of the case."""
        return Pool(self.search_space, PredictionBasis(self.shape, self.spec.workload, self.cluster, self.hardware))


def on_gpus(name: str, model: object, cluster: str, sequence_length: int, global_batch: int) -> Case:
    """Study of a model on GPUs of the catalogue, whose rates nobody has measured."""
    request = StudyRequest.model_validate(
        {
            "model": model,
            "workload": {"sequence_length": sequence_length, "global_batch": global_batch},
            "cluster": cluster,
        }
    )
    of_cluster = catalogue.parse_cluster(cluster)
    spec = request.with_precision(decide(request.workload.precision, [catalogue.dtypes_of(of_cluster)])[0])
    return Case(name, spec, of_cluster, _summary(spec), CUDA_4_HOSTS if of_cluster.nodes > 1 else CUDA)


def on_cpu_ranks() -> Case:
    """The study of `make tune` on two CPU ranks, on a machine whose rates a worker has measured."""
    hardware = HardwareReport.model_validate_json((_DATA / "own_hardware.json").read_text())
    request = StudyRequest.model_validate_json((_EXAMPLES / "llama-tiny.json").read_text())
    spec = request.with_precision(PRECISIONS["bf16-mixed"])
    summary = _summary(spec)
    # The predictor knows a CPU to an order of magnitude before its first trial: the level is that of the real study,
    # whose baseline ran at 2,109 tokens/s and rank and whose challenger at 3,600, where 2,529 and 4,174 are predicted.
    errors = Errors(level=0.0, shift=math.log(1.18))
    return Case("llama-tiny-2-cpu", spec, hardware.cluster, summary, CPU, errors, hardware.measured, _REAL)


def _summary(spec: StudySpec) -> ModelSummary:
    shape = config_shape.from_config(spec.model.trained_config, spec.model.name)
    # A model's FLOPs are those of one forward and one backward pass, which is twice as much.
    forward = shape.model_flops_per_token(spec.workload.sequence_length) / 3
    return traced_shape.summary_of(shape).model_copy(update={"forward_flops_per_token": forward})


CASES: dict[str, Callable[[], Case]] = {
    "llama-tiny-2-cpu": on_cpu_ranks,
    "8b-8xh100-10s": lambda: on_gpus("8b-8xh100-10s", "llama-3.1-8b", "8xh100", 8192, 96),
    "8b-8xh100-45s": lambda: on_gpus("8b-8xh100-45s", "llama-3.1-8b", "8xh100", 8192, 432),
    "8b-32xh100": lambda: on_gpus("8b-32xh100", "llama-3.1-8b", "4x8xh100", 8192, 256),
    "70b-8xh100": lambda: on_gpus("70b-8xh100", _LLAMA_70B, "8xh100", 8192, 16),
    "70b-32xh100": lambda: on_gpus("70b-32xh100", _LLAMA_70B, "4x8xh100", 8192, 64),
}
"""Cases by the names that `--case` and the JSON use."""
