"""Source of an export: a study, the measured trial to export, and values derived from both."""

from dataclasses import dataclass

from shardtune.api_schemas.base import Dtype
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender, Verdict
from shardtune.api_schemas.studies.verdicts import TOO_BUSY_STATE
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask

_TORCH = {"float32": "torch.float32", "bfloat16": "torch.bfloat16", "float16": "torch.float16"}


@dataclass(frozen=True)
class ExportSource:
    """Source of an export: a measured configuration with the model, workload and cluster on which it was measured."""

    study: Study
    contender: Contender
    model_summary: ModelSummary

    @classmethod
    def of(cls, study: Study, contender: Contender) -> "ExportSource":
        """Build the source of an export for a measured trial of a study. Raises ValueError for a study whose model was
        not traced, because such a study has no measurements either."""
        if study.model_summary is None:
            raise ValueError(f"study ({study.study_id}) has no model summary yet; wait until its first trial has ended")
        return cls(study, contender, study.model_summary)

    @property
    def config(self) -> TrialConfig:
        """Measured configuration that the export reproduces."""
        return self.contender.config

    @property
    def description(self) -> str:
        """Description of the exported configuration, with a warning if its study has no verdict: it has not ended, or
        the machine was too busy."""
        result = self.study.result
        if result is None:
            return f"{self.contender.description} (not confirmed yet)"
        warning = f" (verdict too_busy: {TOO_BUSY_STATE})"
        return self.contender.description + (warning if result.verdict is Verdict.TOO_BUSY else "")

    @property
    def is_projected(self) -> bool:
        """Whether the exported configuration never ran on the export's cluster, so that its figures are projected from
        a smaller cluster."""
        return self.contender.runs == 0

    @property
    def origin(self) -> str:
        """Verb (`measured` or `projected`) that says where the configuration's figures come from."""
        return "projected" if self.is_projected else "measured"

    @property
    def workload(self) -> Workload:
        """Workload of the exported study."""
        return self.study.spec.workload

    @property
    def is_text_part(self) -> bool:
        """Whether the trained model is the text part of a multimodal model, in which case `config.json` contains the
        whole model."""
        return self.study.spec.model.trained_config is not self.study.spec.model.config

    @property
    def attention(self) -> str:
        """Name of the attention implementation that the trials' model used."""
        return self.model_summary.attention or self.workload.attention

    @property
    def cluster(self) -> Cluster:
        """Cluster on which the exported configuration was measured."""
        return self.study.cluster

    @property
    def shown_in(self) -> str:
        """Name of the document to which notes refer for settings that an exported file cannot express:
        `train_snippet.py`, or the manual for a user's own code."""
        return "docs/how-to/own-code.md" if self.study.spec.model.is_own else "train_snippet.py"

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks of the exported configuration run on CPU, without an accelerator."""
        return self.cluster.device == "cpu"

    @property
    def accumulation(self) -> int:
        """Number of micro batches per optimizer step and rank."""
        return self.config.accumulation(self.workload.global_batch, self.cluster.world_size)

    @property
    def casts_weights(self) -> bool:
        """Whether the exported backend casts weights for forward and backward to another dtype than that of the master
        weights."""
        return self.workload.precision.weights_dtype != self.workload.precision.master_dtype

    @property
    def autocasts(self) -> bool:
        """Whether weights keep their dtype, and matrix products cast them and their inputs when they use them
        (`torch.autocast`)."""
        return self.workload.precision.autocast

    @property
    def has_low_states(self) -> bool:
        """Whether the whole training is in a dtype below float32, optimizer states included."""
        return self.workload.precision.has_low_states

    @property
    def block_list(self) -> str:
        """Dotted path of the model's list of repeated blocks, such as `model.layers`."""
        return self.model_summary.blocks[0].name.rpartition(".")[0]

    @property
    def leaves_parameters_unused(self) -> bool:
        """Whether some trained parameters get no gradient in a step, so that DistributedDataParallel must look for
        them."""
        return self.model_summary.leaves_parameters_unused

    @property
    def machines(self) -> str:
        """Text that describes the exported cluster."""
        kind = "CPU ranks" if self.on_cpu else f"× {self.cluster.gpu}"
        nodes = f"{self.cluster.nodes} nodes of " if self.cluster.nodes > 1 else ""
        return f"{nodes}{self.cluster.gpus_per_node} {kind}"

    def task(self) -> TrialTask:
        """Exported trial as a task that the command `run-trial` can run."""
        headroom = self.study.spec.objective.memory_headroom
        return TrialTask(
            model=self.study.spec.model,
            workload=self.workload,
            cluster=self.cluster,
            config=self.config,
            # A GPU reports its own limit; CPU ranks share the host's memory and have none unless it is set.
            memory_limit_gib=self.cluster.memory_gib * (1 - headroom) if self.on_cpu else None,
            forward_flops_per_token=self.model_summary.forward_flops_per_token,
            training_flops_per_token=self.model_summary.training_flops_per_token,
            least_flops_per_token=self.model_summary.least_flops_per_token,
            leaves_parameters_unused=self.model_summary.leaves_parameters_unused,
        )


def reject_axes(source: ExportSource, consumer: str) -> None:
    """Reject a configuration with other parallelism than data parallelism, for an export to a program that has only
    data parallelism.

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
                f"{axis} ({size}) cannot be expressed in {consumer}; take the standard files, whose train_snippet.py does it, or "
                "export a trial without it with --which NUMBER"
            )


def torch_dtype(dtype: Dtype) -> str:
    """Python expression for a torch dtype, such as `torch.bfloat16`."""
    return _TORCH[dtype]
