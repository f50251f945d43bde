"""Arguments of the tools about studies: recommendations, comparisons, states, diagnoses and exports."""

from typing import Literal

from pydantic import Field, JsonValue

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.names import StudyId
from shardtune.api_schemas.recommendations.best import ConfidenceLevel
from shardtune.api_schemas.studies.comparisons import MOST_COMPARED
from shardtune.api_schemas.studies.exports import ExportFormat
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.training.adapters import Adapter
from shardtune.api_schemas.training.sample_lengths import SampleLengths
from shardtune.service.mcp.schemas.arguments import AttentionName, PrecisionName


class BestArguments(Schema):
    """Arguments of the tool `best`: either a target key, or a model, a cluster and a workload."""

    target_key: str | None = Field(default=None, pattern=r"^[0-9a-f]{32}$")
    """Key of a tuning target (model, workload, cluster), taken from an earlier answer; it replaces all other fields."""
    model: str | dict[str, JsonValue] | None = Field(default=None, examples=["llama-3.1-8b"])
    """Preset, Hugging Face id, or the content of a `config.json`."""
    cluster: str | dict[str, JsonValue] | None = Field(default=None, examples=["8xh100"])
    """Nodes × GPUs per node × GPU, or `local` for the service's workers."""
    sequence_length: int | None = None
    """Tokens per sample; required unless `target_key` is given."""
    global_batch: int | None = None
    """Samples per optimizer step; required unless `target_key` is given."""
    precision: PrecisionName = "auto"
    """Dtypes of training."""
    optimizer: str | dict[str, JsonValue] = "adamw"
    """Optimizer: its kind, such as `adamw`, or an object with `kind` and settings."""
    adapter: Adapter = Field(
        default=None, examples=[{"kind": "lora", "rank": 16}, {"kind": "last_layers", "layers": 2}]
    )
    """Part of the model that is trained while all other weights stay frozen; null: all weights are trained."""
    data: SampleLengths | None = None
    """Lengths of the samples; null: every sample has `sequence_length` tokens."""
    attention: AttentionName = "sdpa"
    """Implementation of attention, by the name that transformers uses."""
    match: Literal["nearest", "exact"] = "nearest"
    """`exact`: only an answer for this tuning target. `nearest`: otherwise also the answer for the most similar
    target, with the differences."""
    lowest_confidence: ConfidenceLevel = ConfidenceLevel.MEDIUM
    """Lowest accepted confidence; `low` also accepts answers from other models, clusters and software."""


class CompareArguments(Schema):
    """Arguments of `compare`."""

    picks: tuple[str, ...] = Field(min_length=2, max_length=MOST_COMPARED, examples=[["study-1", "study-1:7"]])
    """Two to four configurations, each named by a study id (the study's recommendation), `STUDY:NUMBER` (a trial), a
    retune id, or a target key."""


class StudiesListArguments(Schema):
    """Arguments of `studies_list`."""

    states: tuple[StudyState, ...] = ()
    """States of the studies to list; an empty list means all states."""
    limit: int = Field(default=10, ge=1, le=50)
    """Maximum number of studies, newest first."""


class StudiesStatusArguments(Schema):
    """Arguments of `studies_status`."""

    study_id: StudyId = "last"
    """Study id, or `last` for the newest study."""


class StudiesCreateArguments(Schema):
    """Arguments of `studies_create`. The call without `confirmation` only estimates; nothing runs."""

    model: str | dict[str, JsonValue] = Field(examples=["llama-3.1-8b"])
    """Preset, Hugging Face id, or the content of a `config.json`."""
    sequence_length: int
    """Tokens per sample."""
    global_batch: int
    """Samples per optimizer step over all GPUs."""
    cluster: str | dict[str, JsonValue] = "local"
    """Nodes × GPUs per node × GPU, or `local` for the service's only worker."""
    precision: PrecisionName = "auto"
    """Dtypes of training."""
    optimizer: str | dict[str, JsonValue] = "adamw"
    """Optimizer: its kind, such as `adamw`, or an object with `kind` and settings."""
    adapter: Adapter = Field(
        default=None, examples=[{"kind": "lora", "rank": 16}, {"kind": "last_layers", "layers": 2}]
    )
    """Part of the model that is trained while all other weights stay frozen; null: all weights are trained."""
    data: SampleLengths | None = None
    """Lengths of the samples; null: every sample has `sequence_length` tokens."""
    attention: AttentionName = "sdpa"
    """Implementation of attention, by the name that transformers uses."""
    max_gpu_seconds: float | None = None
    """Budget that the user states: GPU-seconds (seconds × GPUs) that the study may take. A run under way at the limit is
    not ended. Nothing starts without the budget."""
    max_trials: int | None = None
    """Maximum number of trials; null: up to 40."""
    max_pairs: int | None = None
    """Maximum number of paired runs that decide the verdict, from 7 to 100; null: 24. Fewer end sooner and prove only
    clear gains."""
    baseline: dict[str, JsonValue] | None = None
    """Configuration that the user trains with today: Shardtune's format, or a DeepSpeed JSON, Accelerate
    configuration or TrainingArguments."""
    space: dict[str, JsonValue] = {}
    """Limits of the search, in the fields `backends` and `knobs`."""
    study_id: StudyId | None = None
    """Id of the new study; null: chosen by the service."""
    confirmation: str | None = None
    """Code that a call without `confirmation` returns with its estimate. Send it once the user has agreed; never make
    one up. A repeated call with the same code returns the first study."""


class DiagnoseArguments(Schema):
    """Arguments of `diagnose`: a folder of traces, or a trial of a study."""

    trace_folder: str | None = Field(default=None, examples=["traces/step-100"])
    """Folder on this machine with one Kineto trace (.json, .json.gz) for each rank of any training job."""
    study_id: StudyId | None = None
    """Id of a study, or `last` for the newest one; given in place of the folder."""
    trial: int | None = Field(default=None, ge=0)
    """Number of the trial; null: the recommended one."""
    max_gpu_seconds: float | None = None
    """Budget in GPU-seconds that the user states for a run under the profiler, which is needed if no diagnosis is
    stored. Null: only a stored diagnosis is read."""


class ExportArguments(Schema):
    """Arguments of `export`."""

    study_id: StudyId = "last"
    """Study id, or `last` for the newest study."""
    which: str = Field(default="best", pattern=r"^(best|baseline|[0-9]{1,6})$")
    """Configuration of the study: `best`, `baseline`, or the number of a trial."""
    format: ExportFormat = "standard"
    """Format of the files. `standard` gives a launch script, a DeepSpeed JSON and an Accelerate YAML; another value
    gives the named program's own format."""
