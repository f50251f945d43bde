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
    """Request to extend a study's budget; at least one field is required. More trials or time continue the search, and
    a new final comparison renews the verdict. More pairs alone continue the last final comparison."""

    add_trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    add_gpu_seconds: float | None = Field(default=None, gt=0, le=1e12)
    """GPU-seconds (seconds × ranks) that are added to the study's limit for all its runs. Allowed only if the study has
    such a limit."""
    add_wall_seconds: float | None = Field(default=None, gt=0, le=1e12)
    """Seconds that are added to the study's limit of wall time. Allowed only if the study has such a limit. The time
    since the study ended does not count."""
    add_pairs: int | None = Field(default=None, ge=1, le=MOST_PAIRS)
    """Number of pairs of validation runs (challenger and baseline) that are added to the study's limit. If they alone are
    added, limits of GPU-seconds and time are raised as far as these pairs should need it."""
    wait_for_quiet_s: float | None = Field(default=None, gt=0, le=MOST_QUIET_WAIT_S, examples=[1800.0])
    """Seconds that are added to the time for which workers may wait, before the study's runs, until the machine is
    quiet. Allowed only with another field of the request, because waiting alone adds no runs."""

    @model_validator(mode="after")
    def _check_any_field(self) -> "Extension":
        if all(
            value is None for value in (self.add_trials, self.add_gpu_seconds, self.add_wall_seconds, self.add_pairs)
        ):
            raise ValueError("extension (empty): give add_trials, add_gpu_seconds, add_wall_seconds or add_pairs")
        return self

    @property
    def searches(self) -> bool:
        """Whether the extension continues the search. If False, only the final comparison (paired runs that decide)
        continues."""
        return any(value is not None for value in (self.add_trials, self.add_gpu_seconds, self.add_wall_seconds))


_REMOVABLE = ("baseline", "target")
"""Fields of a request to copy a study for which null means that the new study has no value, although the old one has.
"""


class CloneRequest(Schema):
    """Request to copy a study. A field that is given replaces the whole field of the old study; all other fields are
    copied."""

    model: ModelChoice | None = None
    workload: WorkloadRequest | None = None
    """Workload of the new study. If the study has a target (a larger cluster), a global batch that differs from the old
    study's becomes the target's; an equal one leaves the target's unchanged."""
    cluster: ClusterChoice | None = None
    target: TargetChoice | None = None
    """Larger cluster to which the new study's answer is projected. If null, there is none, even if the old study has
    one."""
    objective: Objective | None = None
    budget: Budget | None = None
    baseline: TrialConfig | dict[str, JsonValue] | None = None
    """Baseline of the new study. If null, there is none, even if the old study has one."""
    space: SpaceLimits | None = None
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    wait_for_quiet_s: float | None = Field(default=None, gt=0, le=MOST_QUIET_WAIT_S, examples=[1800.0])
    """Maximum seconds that the new study's runs may wait, in total, until other programs leave the machines."""

    def applied_to(self, spec: StudyRequest) -> StudyRequest:
        """Return the request for the new study. A workload that is copied keeps the precision that was chosen for it."""
        set_fields = {name: getattr(self, name) for name in self.model_fields_set}
        changed = {name: value for name, value in set_fields.items() if value is not None or name in _REMOVABLE}
        if (target := changed.get("target", spec.target)) is not None:
            changed["target"] = self._with_batch(target, spec)
        return StudyRequest(**{name: getattr(spec, name) for name in StudyRequest.model_fields} | changed)

    def _with_batch(self, target: Target, spec: StudyRequest) -> Target:
        """Return the target of the new study. If the global batch of the workload is unchanged, the target keeps the
        global batch of the old target.

        The workload of a stored study holds only the cluster's part of the target's global batch. A request that
        repeats this part wants to change another field of the workload; any other value is meant for the target.
        """
        if self.workload is None or self.workload.global_batch == spec.workload.global_batch:
            return target.with_batch_of(spec.target)
        return target if "target" in self.model_fields_set else target.model_copy(update={"global_batch": None})
