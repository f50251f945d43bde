"""Schemas of changes to a stored study: an extension of its budget, or a copy with other settings."""

from pydantic import Field, JsonValue, model_validator

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.machines.hardware import ClusterChoice
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.budget import MOST_PAIRS, MOST_TRIALS, Budget
from shardtune.api_schemas.studies.study_request import MOST_QUIET_WAIT_S, StudyRequest
from shardtune.api_schemas.studies.targets import Target, TargetChoice
from shardtune.api_schemas.training.models import ModelChoice
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import WorkloadRequest
from shardtune.api_schemas.trials.objective import Objective


class Extension(Schema):
    """Request to extend a study's budget, in addition to the amount spent or remaining; at least one field is required.
    More trials or time: the search continues, and a new final comparison renews the verdict. Only more pairs: the last
    final comparison continues."""

    add_trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    add_gpu_seconds: float | None = Field(default=None, gt=0, le=1e12)
    """Additional GPU-seconds (seconds × ranks) of all runs; only for a study that has such a limit."""
    add_wall_seconds: float | None = Field(default=None, gt=0, le=1e12)
    """Additional seconds of wall time; only for a study that has such a limit. Time since the study's end does not
    count."""
    add_pairs: int | None = Field(default=None, ge=1, le=MOST_PAIRS)
    """Additional pairs of validation runs that the study may use before its verdict."""
    wait_for_quiet_s: float | None = Field(default=None, gt=0, le=MOST_QUIET_WAIT_S, examples=[1800.0])
    """Additional seconds that workers may wait before the study's runs until the machine is quiet; only allowed with
    another field of the request, since waiting adds no runs."""

    @model_validator(mode="after")
    def _check_any_field(self) -> "Extension":
        if all(
            value is None for value in (self.add_trials, self.add_gpu_seconds, self.add_wall_seconds, self.add_pairs)
        ):
            raise ValueError("extension (empty): give add_trials, add_gpu_seconds, add_wall_seconds or add_pairs")
        return self

    @property
    def searches(self) -> bool:
        """Whether the larger budget continues the search; otherwise only the final comparison continues."""
        return any(value is not None for value in (self.add_trials, self.add_gpu_seconds, self.add_wall_seconds))


_REMOVABLE = ("baseline", "target")
"""Fields of a copy request in which null removes the old study's value."""


class CloneRequest(Schema):
    """Request to copy a study. Each given field replaces the old study's field as a whole; other fields are copied."""

    model: ModelChoice | None = None
    workload: WorkloadRequest | None = None
    """Workload of the new study. If the study has a target, a global batch that differs from the old study's becomes
    the target's global batch; an equal one leaves the target's unchanged."""
    cluster: ClusterChoice | None = None
    target: TargetChoice | None = None
    """Larger cluster that the new study's answer is projected to; null: none, even if the old study has one."""
    objective: Objective | None = None
    budget: Budget | None = None
    baseline: TrialConfig | dict[str, JsonValue] | None = None
    """Baseline of the new study; null: no baseline, even if the old study has one."""
    space: SpaceLimits | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    wait_for_quiet_s: float | None = Field(default=None, gt=0, le=MOST_QUIET_WAIT_S, examples=[1800.0])
    """Total seconds that the new study's runs may wait until machines are quiet."""

    def applied_to(self, spec: StudyRequest) -> StudyRequest:
        """Return the request for the new study; a copied workload keeps its precision."""
        set_fields = {name: getattr(self, name) for name in self.model_fields_set}
        changed = {name: value for name, value in set_fields.items() if value is not None or name in _REMOVABLE}
        if (target := changed.get("target", spec.target)) is not None:
            changed["target"] = self._with_batch(target, spec)
        return StudyRequest(**{name: getattr(spec, name) for name in StudyRequest.model_fields} | changed)

    def _with_batch(self, target: Target, spec: StudyRequest) -> Target:
        """Return the new study's target, with the old target's global batch if the workload's global batch is
        unchanged.

        The workload of a stored study holds only the cluster's part of the target's global batch. A request that
        repeats this part changes another field of the workload; any other value is the target's global batch.
        """
        if self.workload is None or self.workload.global_batch == spec.workload.global_batch:
            return target.with_batch_of(spec.target)
        return target if "target" in self.model_fields_set else target.model_copy(update={"global_batch": None})
