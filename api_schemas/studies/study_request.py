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
"""Longest time in seconds, summed over the runs of a study, that workers may wait until other programs leave the
machine."""


SamplerName = Literal["guided", "tpe", "gp", "random"]


class StudyRequest(Schema):
    """Request to create a study. A study file has the same format."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": EXAMPLE, "workload": {"sequence_length": 128, "global_batch": 8}, "cluster": "local"}
            ]
        }
    )

    model: ModelChoice
    """Model to train: the name of a preset, an id on the Hugging Face hub (`OWNER/NAME` or `OWNER/NAME@REVISION`), the
    content of a `config.json`, or your own code that the worker's owner allows."""
    workload: WorkloadRequest
    cluster: ClusterChoice = "local"
    """Cluster for which to tune: an object with all fields, or a short form such as `8xh100` or `4x8xa100-80gb`.
    `local` means the hardware of the only registered worker."""
    target: TargetChoice | None = None
    """Larger cluster of the same GPUs, to which the answer is projected: an object, or the short form `NODESxGPUS`,
    such as `64x8`. `workload.global_batch` is then that of the target, and the study trains with the part of it that
    falls to its own, smaller cluster. If null, nothing is projected."""
    confirms: str | None = Field(
        default=None, max_length=32, pattern=r"^[A-Za-z0-9._-]+$", examples=["study-0123456789ab"]
    )
    """Id of an earlier study whose projection this study confirms or changes. This study compares the first two choices
    of the projection on the target itself, as stated in `confirm.json` of the export for the target. If null, the study
    stands alone."""
    objective: Objective = Objective()
    budget: Budget = Budget()
    baseline: TrialConfig | dict[str, JsonValue] | None = None
    """Configuration with which you train today. It may be in Shardtune's format, or an unchanged DeepSpeed JSON,
    Accelerate configuration or `TrainingArguments` of transformers. Replace references to files by their content."""
    space: SpaceLimits = SpaceLimits()
    consider: tuple[ConsideredName, ...] = Field(
        default=(), max_length=MOST_CONSIDERED, examples=[["bf16-true", "muon"]]
    )
    """Recipes (other precisions and optimizers) to compare with the answer in speed, memory and losses. A recipe
    changes what is trained, so it never becomes the answer. Each takes 3 to 10 pairs of runs, and its first run begins
    with `consider_steps` steps, over which losses are compared."""
    consider_steps: int = Field(default=200, ge=FEWEST_LOSS_STEPS, le=MOST_LOSS_STEPS)
    """Number of steps over which the losses of each considered recipe (precision or optimizer) are compared with those
    of the workload's own recipe, on the same data."""
    most_loss_difference: float = Field(default=0.02, gt=0, le=10)
    """Largest increase of the loss that a considered recipe (precision or optimizer) may cause, as a mean over the last
    half of the compared steps. A recipe whose increase is certainly larger is reported to train worse."""
    sampler: SamplerName = "guided"
    """Algorithm that proposes configurations. `guided` uses predictions and the study's measurements; `tpe` and `gp`
    are Optuna's samplers; `random` draws each knob at random. If nothing can be predicted, `guided` works as `tpe`."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Random seed of the sampler that proposes trials."""
    checkpoint_every_s: float = Field(default=1800.0, ge=1, le=1e9)
    """Seconds between two checkpoints in the training run that will use the result. The resume check reports which
    fraction of that run's time saving would take."""
    wait_for_worker_s: float | None = Field(default=None, gt=0, le=MOST_WAIT_S)
    """Seconds for which the study waits if no worker has its cluster (`GET /v1/demand` lists what is missing); after
    that, it fails. If null, the study is rejected at once."""
    wait_for_quiet_s: float | None = Field(default=None, gt=0, le=MOST_QUIET_WAIT_S, examples=[1800.0])
    """Seconds, summed over all runs, that workers may wait before runs until other programs leave the machine. After
    that, runs take place anyway. Workers that wait at the same time may each use all remaining seconds. If null,
    workers do not wait."""

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
        """Return the complete specification of the study: the request, with the given precision in its workload."""
        fields = {name: getattr(self, name) for name in StudyRequest.model_fields}
        # A recipe that was named beside `auto` may be the one that the device chose.
        workload = self.workload.with_precision(precision)
        fields["consider"] = tuple(name for name in self.consider if not is_stated(workload, name))
        return StudySpec(**fields | {"workload": workload})


class StudySpec(StudyRequest):
    """Complete specification of a study: its request, with a precision that has been decided."""

    workload: Workload

    def with_possible_backends(self) -> "StudySpec":
        """Return the specification without those backends that cannot train with the workload's optimizer or its
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
