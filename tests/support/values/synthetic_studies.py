"""Studies as the service would hand them to the exporter, without having run them."""

from datetime import UTC, datetime
from typing import Any

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudySpec
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.api_schemas.studies.study_state import StudyPhase, StudyState
from shardtune.api_schemas.training.models import BlockSummary, ModelSummary, preset
from shardtune.api_schemas.training.optimizers import AdamW, AdamW8bit, AdamWBf16, Muon
from shardtune.api_schemas.training.workload import PRECISIONS, Workload

CPU = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
_BLOCKS = {"llama": "model.layers", "mixtral": "model.layers", "gpt2": "transformer.h"}
_CLASSES = {"llama": "LlamaDecoderLayer", "mixtral": "MixtralDecoderLayer", "gpt2": "GPT2Block"}


def study_of(
    model: str = "llama-tiny", precision: str = "fp32", cluster: Cluster = CPU, global_batch: int = 8
) -> Study:
    spec = StudySpec(
        model=preset(model),
        workload=Workload(sequence_length=32, global_batch=global_batch, precision=PRECISIONS[precision]),
        cluster=cluster,
    )
    kind = spec.model.model_type
    block = BlockSummary(name=f"{_BLOCKS[kind]}.0", parameters=10, largest_parameter=5, forward_flops_per_token=20)
    model_summary = ModelSummary(
        parameters=100, active_parameters=100, blocks=(block,), block_class=_CLASSES[kind],
        moe_class="MixtralSparseMoeBlock" if kind == "mixtral" else None, forward_flops_per_token=200,
        hidden_size=8, vocab_size=64, max_positions=None, experts=4 if kind == "mixtral" else 1, expert_width=64,
    )  # fmt: skip
    return Study(
        study_id="study-1", state=StudyState.COMPLETE, phase=StudyPhase.DONE, spec=spec, cluster=cluster, model_summary=model_summary,
        trials={"complete": 1}, rejected=0, gpu_seconds=1, created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def with_muon(study: Study) -> Study:
    """The same study with Muon in its workload."""
    return with_optimizer(study, Muon())


def with_optimizer(study: Study, optimizer: AdamW | AdamW8bit | AdamWBf16 | Muon) -> Study:
    """The same study with another optimizer in its workload."""
    workload = study.spec.workload.model_copy(update={"optimizer": optimizer})
    return study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})})


def with_float8(study: Study, recipe: str | None) -> Study:
    """The same study with float8 in its workload."""
    workload = study.spec.workload.model_copy(update={"float8": recipe})
    return study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})})


def with_adapter(study: Study, adapter: Any) -> Study:
    """The same study with an adapter in its workload, as a request names it."""
    workload = Workload.model_validate({**dict(study.spec.workload), "adapter": adapter})
    return study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})})


def contender_of(config: TrialConfig) -> Contender:
    return Contender(
        trial_number=0, config=config, description=config.describe(), tokens_per_s_per_gpu=1000, peak_allocated_gib=0.5,
        peak_reserved_gib=None, runs=5,
    )  # fmt: skip
