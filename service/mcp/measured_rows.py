"""Rows of measured configurations and studies in answers."""

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender, Speedup, StudyResult
from shardtune.api_schemas.training.adapters import AdapterSchema
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.service.mcp.configs import short_config
from shardtune.service.mcp.schemas.figures import BAND_95, GIB, SPEED, Figure, figure
from shardtune.service.mcp.schemas.study_answers import ListedStudy, MeasuredConfig, StudyOutcome
from shardtune.service.wording import cluster_words

SPREAD = "slowest and fastest run"
GPU_SECONDS = "GPU-seconds (seconds × ranks)"


def measured_config(contender: Contender, study_id: str) -> MeasuredConfig:
    """Return a measured configuration."""
    source = f"{counted(contender.runs, 'run')} of trial {contender.trial_number} of {study_id}"
    speed = figure(contender.tokens_per_s_per_gpu, SPEED, "measured", source, contender.spread, SPREAD)
    return MeasuredConfig(
        description=contender.description,
        config=short_config(contender.config),
        speed=speed,
        memory=memory_figure(contender.peak_allocated_gib, contender.peak_reserved_gib, source),
        trial_number=contender.trial_number,
        runs=contender.runs,
    )


def memory_figure(allocated_gib: float | None, reserved_gib: float | None, source: str) -> Figure | None:
    """Return the measured peak memory: what the allocator reserved or, if that was not measured, what tensors
    allocated. None if neither was measured."""
    if reserved_gib is not None:
        return figure(reserved_gib, GIB, "measured", f"reserved by the allocator, {source}")
    return None if allocated_gib is None else figure(allocated_gib, GIB, "measured", f"tensors, {source}")


def speedup_figure(speedup: Speedup | None, study_id: str) -> Figure | None:
    """Return the measured speed-up with its 95 % interval; None if nothing was compared."""
    if speedup is None:
        return None
    source = f"{speedup.pairs} paired runs of {study_id}"
    return figure(speedup.value, "ratio of speeds", "measured", source, speedup.ci95, BAND_95)


def gpu_seconds(value: float, study_id: str) -> Figure:
    """Return the GPU-seconds that a study has used, as a figure (a number with unit and source)."""
    return figure(value, GPU_SECONDS, "measured", f"attempts of {study_id}")


def trained(adapter: AdapterSchema | None, model: ModelSpec) -> str:
    """Describe which weights are trained: all weights, those of an adapter, or those that the user's own code
    chooses."""
    if model.is_own and adapter is None:
        return "what the own code trains"
    return "all weights" if adapter is None else adapter.describe()


def samples(data: SampleLengths | None) -> str:
    """Describe in words how long the samples are."""
    return "equal lengths" if data is None else data.describe()


def listed_study(study: Study) -> ListedStudy:
    """Return a study as a row of a list of studies."""
    best = study.result.best if study.result is not None else study.best_so_far
    return ListedStudy(
        study_id=study.study_id,
        state=study.state,
        phase=study.phase,
        model=study.spec.model.name,
        cluster=cluster_words.cluster(study.cluster),
        sequence_length=study.spec.workload.sequence_length,
        global_batch=study.spec.workload.global_batch,
        trained=trained(study.spec.workload.adapter, study.spec.model),
        samples=samples(study.spec.workload.data),
        trials=sum(study.trials.values()),
        gpu_seconds=gpu_seconds(study.gpu_seconds, study.study_id),
        created_at=study.created_at,
        best=None if best is None else measured_config(best, study.study_id),
    )


def outcome(result: StudyResult, study_id: str) -> StudyOutcome:
    """Return the result of a study."""
    return StudyOutcome(
        verdict=result.verdict,
        speedup=speedup_figure(result.speedup, study_id),
        best=measured_config(result.best, study_id),
        baseline=measured_config(result.baseline, study_id),
        candidate=None if result.candidate is None else measured_config(result.candidate, study_id),
        notes=result.notes,
    )
