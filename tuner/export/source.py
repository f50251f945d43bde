"""What an export is about: a study's contender, with everything that follows from the two."""

from dataclasses import dataclass

from shardtune.api_schemas.base import Dtype
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Contender, Study
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask

_TORCH = {"float32": "torch.float32", "bfloat16": "torch.bfloat16"}


@dataclass(frozen=True)
class ExportSource:
    """One configuration with the model, workload and cluster it was measured on."""

    study: Study
    contender: Contender
    model_summary: ModelSummary

    @classmethod
    def of(cls, study: Study, contender: Contender) -> "ExportSource":
        """Raises ValueError for a study whose model has not been profiled, which has measured nothing either."""
        if study.model_summary is None:
            raise ValueError(f"study ({study.study_id}) has no model profile yet; wait until its first trial has ended")
        return cls(study, contender, study.model_summary)

    @property
    def config(self) -> TrialConfig:
        """The configuration."""
        return self.contender.config

    @property
    def workload(self) -> Workload:
        """What is trained."""
        return self.study.spec.workload

    @property
    def is_text_part(self) -> bool:
        """Of a multimodal model, which is what `config.json` has."""
        return self.study.spec.model.trained_config is not self.study.spec.model.config

    @property
    def attention(self) -> str:
        """What the trials' model was built with."""
        return self.model_summary.attention or self.workload.attention

    @property
    def cluster(self) -> Cluster:
        """Where it was measured."""
        return self.study.cluster

    @property
    def shown_in(self) -> str:
        """Where its reader finds what a file has no words for: beside it, or for code of their own, in the manual."""
        return "docs/how-to/own-code.md" if self.study.spec.model.is_own else "train_snippet.py"

    @property
    def on_cpu(self) -> bool:
        """Ranks without an accelerator."""
        return self.cluster.device == "cpu"

    @property
    def accumulation(self) -> int:
        """Micro batches per optimizer step and rank."""
        return self.config.accumulation(self.workload.global_batch, self.cluster.world_size)

    @property
    def casts_weights(self) -> bool:
        """Backends hold weights for forward and backward in another dtype than the masters'."""
        return self.workload.precision.weights_dtype != self.workload.precision.master_dtype

    @property
    def autocasts(self) -> bool:
        """Products cast weights and inputs as they take them (`torch.autocast`)."""
        return self.workload.precision.autocast

    @property
    def block_list(self) -> str:
        """Dotted path of the list of repeated blocks, such as `model.layers`."""
        return self.model_summary.blocks[0].name.rpartition(".")[0]

    @property
    def machines(self) -> str:
        """The cluster in words."""
        kind = "CPU ranks" if self.on_cpu else f"× {self.cluster.gpu}"
        nodes = f"{self.cluster.nodes} nodes of " if self.cluster.nodes > 1 else ""
        return f"{nodes}{self.cluster.gpus_per_node} {kind}"

    def task(self) -> TrialTask:
        """The trial, for `run-trial`."""
        headroom = self.study.spec.objective.memory_headroom
        return TrialTask(
            model=self.study.spec.model,
            workload=self.workload,
            cluster=self.cluster,
            config=self.config,
            memory_limit_gib=self.cluster.memory_gib * (1 - headroom) if self.on_cpu else None,
            forward_flops_per_token=self.model_summary.forward_flops_per_token,
            least_flops_per_token=self.model_summary.least_flops_per_token,
        )


def reject_axes(source: ExportSource, consumer: str) -> None:
    """For a consumer that has words for data parallelism alone.

    Raises:
        ValueError: ranks share samples, split the model, or divide experts.
    """
    strategy = source.config.strategy
    sizes = {
        "context_parallel": source.config.context_parallel,
        "tensor_parallel": strategy.model_parallel // strategy.stages,
        "pipeline_parallel": strategy.stages,
        "expert_parallel": strategy.expert_ranks,
    }
    for axis, size in sizes.items():
        if size > 1:
            raise ValueError(
                f"{axis} ({size}) has no words in {consumer}; take the standard files, whose train_snippet.py does it, or "
                "export a trial without it with --which NUMBER"
            )


def torch_dtype(dtype: Dtype) -> str:
    """The dtype as source code."""
    return _TORCH[dtype]
