"""Schemas of the request to create a study, which is also the format of a study file, and of the complete specification."""

from typing import Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import ClusterChoice
from shardtune.api_schemas.strategies import TrialConfig, optimizer_support
from shardtune.api_schemas.strategies.recipe_support import deepcompile_support, fp16_support, lora_support
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.recipes import (
    FEWEST_LOSS_STEPS,
    MOST_CONSIDERED,
    ConsideredName,
    check_names,
    is_stated,
)
from shardtune.api_schemas.studies.targets import TargetChoice
from shardtune.api_schemas.training.models import EXAMPLE, ModelChoice
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import Precision, Workload, WorkloadRequest
from shardtune.api_schemas.trials.measure_plan import MOST_LOSS_STEPS
from shardtune.api_schemas.trials.objective import Objective

MOST_WAIT_S = 30 * 86_400.0
"""Longest time in seconds that a study may wait for a worker."""
MOST_QUIET_WAIT_S = 7 * 86_400.0
"""Longest total time in seconds that the runs of a study may wait until other programs leave the machines."""


SamplerName = Literal["guided", "tpe", "gp", "random"]


class StudyRequest(Schema):
    """Request to create a study; also the format of a study file."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": EXAMPLE, "workload": {"sequence_length": 128, "global_batch": 8}, "cluster": "local"}
            ]
        }
    )

    model: ModelChoice
    """Model to train: a preset's name, its id on the Hugging Face hub (`OWNER/NAME` or `OWNER/NAME@REVISION`), a
    `config.json`, or your own code that the worker's owner allows."""
    workload: WorkloadRequest
    cluster: ClusterChoice = "local"
    """Cluster to tune for: in full, by its short form (`8xh100`, `4x8xa100-80gb`), or `local`: the hardware of the only
    registered worker."""
    target: TargetChoice | None = None
    """Larger cluster of the same GPUs that the answer is projected to, in full or by its short form `NODESxGPUS`, such
    as `64x8`. `workload.global_batch` is then the target's, and the study trains with the part of it that falls to its
    smaller cluster. null: no projection."""
    confirms: str | None = Field(
        default=None, max_length=32, pattern=r"^[A-Za-z0-9._-]+$", examples=["study-0123456789ab"]
    )
    """Study whose projection this study confirms or changes: it compares the first two choices on the target, as
    `confirm.json` of the export for the target says. null: the study stands alone."""
    objective: Objective = Objective()
    budget: Budget = Budget()
    baseline: TrialConfig | dict[str, JsonValue] | None = None
    """Configuration that you use today: in Shardtune's format, or an unchanged DeepSpeed JSON, Accelerate configuration
    or TrainingArguments of transformers (replace references to files by their content)."""
    space: SpaceLimits = SpaceLimits()
    consider: tuple[ConsideredName, ...] = Field(
        default=(), max_length=MOST_CONSIDERED, examples=[["bf16-true", "muon"]]
    )
    """Recipes (other precisions and optimizers) to compare with the answer in speed, memory and losses. They change
    what is trained, so none of them becomes the answer. Each takes 3 to 10 pairs of runs, and its first run begins with
    `consider_steps` steps."""
    consider_steps: int = Field(default=200, ge=FEWEST_LOSS_STEPS, le=MOST_LOSS_STEPS)
    """Number of steps over which the losses of considered recipes are compared with those of the workload's stated
    recipe, on the same data."""
    most_loss_difference: float = Field(default=0.02, gt=0, le=10)
    """Maximum increase of the loss with a considered recipe, as a mean over the last half of the steps. A recipe whose
    increase is certainly larger is reported to train worse."""
    sampler: SamplerName = "guided"
    """Algorithm that proposes trials: `guided` uses predictions and the study's measurements, `tpe` and `gp` are
    Optuna's, `random` samples each knob. `guided` falls back to `tpe` if nothing can be predicted."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Random seed of the sampler that proposes trials."""
    checkpoint_every_s: float = Field(default=1800.0, ge=1, le=1e9)
    """Seconds between two checkpoints of the training run that will use the result; the resume check reports the
    fraction of time that saving takes."""
    wait_for_worker_s: float | None = Field(default=None, gt=0, le=MOST_WAIT_S)
    """Seconds to wait for a worker if none has the cluster (`GET /v1/demand` shows the demand); then the study fails.
    null: the study is rejected at once."""
    wait_for_quiet_s: float | None = Field(default=None, gt=0, le=MOST_QUIET_WAIT_S, examples=[1800.0])
    """Seconds, summed over all runs, that workers may wait before runs until other programs leave the machine; then the
    runs take place anyway. null: no waiting. Workers that wait at the same time may each use all remaining seconds."""

    @field_validator("baseline", mode="before")
    @classmethod
    def _no_path(cls, baseline: object) -> object:
        if isinstance(baseline, str):
            raise ValueError(
                f"baseline ({baseline!r:.200}) must be an object: a configuration, or the content of a DeepSpeed, Accelerate or "
                "TrainingArguments file; send that, since paths (.json, .yaml) are read by the command line only"
            )
        return baseline

    @model_validator(mode="after")
    def _comparable_recipes(self) -> "StudyRequest":
        check_names(self.consider, self.workload, is_script=self.model.script is not None)
        return self

    def with_precision(self, precision: Precision) -> "StudySpec":
        """Return the complete study specification, with the given precision in the workload."""
        fields = {name: getattr(self, name) for name in StudyRequest.model_fields}
        # A recipe that was named beside `auto` may be the one that the device chose.
        workload = self.workload.with_precision(precision)
        fields["consider"] = tuple(name for name in self.consider if not is_stated(workload, name))
        return StudySpec(**fields | {"workload": workload})


class StudySpec(StudyRequest):
    """Complete specification of a study: its request with the precision decided."""

    workload: Workload

    def with_possible_backends(self) -> "StudySpec":
        """Return the specification without the backends that cannot train with the workload's optimizer, or with its
        quantised weights.

        Raises:
            ValueError: none of them can.
        """
        backends = optimizer_support.trainable_backends(self.space.backends, self.workload.optimizer)
        backends = lora_support.trainable_backends(backends, self.workload.adapter)
        optimizer_support.check_limits(self.space.knobs, self.workload.optimizer)
        fp16_support.check_limits(self.space.knobs, self.workload.precision)
        deepcompile_support.check_limits(self.space.knobs, self.workload)
        return self.model_copy(update={"space": self.space.model_copy(update={"backends": backends})})
