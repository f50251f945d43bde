"""Studies whose cost is simulated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from benchmarks.study_cost.overheads import CUDA, CUDA_4_HOSTS, Overheads
from benchmarks.study_cost.truth import Errors
from shardtune.api_schemas.machines.hardware import Cluster, MeasuredHardware
from shardtune.api_schemas.studies.study import StudyRequest, StudySpec
from shardtune.api_schemas.training.models import ModelSummary, preset
from shardtune.api_schemas.training.native_dtypes import decide
from shardtune.tuner.prediction import catalogue, model_shape, traced_shape
from shardtune.tuner.prediction.model_shape import ModelShape
from shardtune.tuner.search import space
from shardtune.tuner.search.guided_sampler.pool import Pool, PredictionBasis

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

    @cached_property
    def shape(self) -> ModelShape:
        """Model's shape, from which the planner predicts."""
        shape = traced_shape.of_study(self.spec.model, self.summary)
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
    shape = model_shape.from_config(spec.model.trained_config, spec.model.name)
    # A model's FLOPs are those of one forward and one backward pass, which is twice as much.
    forward = shape.model_flops_per_token(sequence_length) / 3
    summary = traced_shape.summary_of(shape).model_copy(update={"forward_flops_per_token": forward})
    return Case(name, spec, of_cluster, summary, CUDA_4_HOSTS if of_cluster.nodes > 1 else CUDA)


CASES: dict[str, Callable[[], Case]] = {
    "8b-8xh100-10s": lambda: on_gpus("8b-8xh100-10s", "llama-3.1-8b", "8xh100", 8192, 96),
    "8b-8xh100-45s": lambda: on_gpus("8b-8xh100-45s", "llama-3.1-8b", "8xh100", 8192, 432),
    "8b-32xh100": lambda: on_gpus("8b-32xh100", "llama-3.1-8b", "4x8xh100", 8192, 256),
    "70b-8xh100": lambda: on_gpus("70b-8xh100", _LLAMA_70B, "8xh100", 8192, 16),
    "70b-32xh100": lambda: on_gpus("70b-32xh100", _LLAMA_70B, "4x8xh100", 8192, 64),
}
"""Cases by the names that `--case` and the JSON use."""
