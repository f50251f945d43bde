"""Steps of a study that a plan may name: wait, a run of some kind, the final comparison, or the end."""

from dataclasses import dataclass

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.studies.final_comparison import Finalists
from shardtune.api_schemas.studies.reasons import StudyReason
from shardtune.api_schemas.studies.recipes import RecipeRun
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.trials.measure_plan import StepTimeRange
from shardtune.api_schemas.trials.predictions import TrialPrediction
from shardtune.api_schemas.trials.trial import Rejection, TrialOrigin, TrialReason


@dataclass(frozen=True)
class Wait:
    """Step of a study: wait until a run ends or a worker requests work."""

    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class NewTrial:
    """Step of a study: add a trial of this configuration."""

    config: TrialConfig
    origin: TrialOrigin
    rejections: tuple[Rejection, ...]
    prediction: TrialPrediction | None
    reason: TrialReason | None = None
    undecided_s: StepTimeRange | None = None
    """Range of step times, in seconds, within which the trial's measurement has to be precise."""


@dataclass(frozen=True)
class NewValidationRun:
    """Step of a study: add a validation run of this trial to this block of the final comparison (paired runs that
    decide).
    """

    trial_number: int
    comparison_block: int
    undecided_s: StepTimeRange | None = None


@dataclass(frozen=True)
class NewResumeRun:
    """Step of a study: add a resume check (save, resume from the checkpoint, compare losses) of this trial, for which
    the final comparison (paired runs that decide) is already decided.
    """

    trial_number: int


@dataclass(frozen=True)
class NewRecipeRun:
    """Step of a study: add a run to a block that compares recipes (numerical formats and optimizers), either of a
    considered recipe or of the study's own.
    """

    trial_number: int
    """Number of the trial whose configuration is the study's answer."""
    recipe: RecipeRun
    comparison_block: int


@dataclass(frozen=True)
class NewRehearsalRun:
    """Step of a study: rehearse a projected configuration (run its first steps untimed) with the target's number of
    ranks. The study's verdict is already known.
    """

    trial_number: int
    """Number of the trial that measured this configuration on the study's own cluster."""
    config: TrialConfig
    """Configuration on the target."""


@dataclass(frozen=True)
class StartFinalComparison:
    """Step of a study: end the search, and compare these finalists, or check the only finalist."""

    final_comparison: Finalists
    reason: StudyReason | None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Complete:
    """Step of a study: complete the study with its result."""

    result: StudyResult
    reason: StudyReason | None = None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Fail:
    """Step of a study: fail the study, because it cannot have a result."""

    reason: StudyReason
    rejections: tuple[Rejection, ...] = ()


NewRun = NewTrial | NewValidationRun | NewResumeRun | NewRecipeRun | NewRehearsalRun
"""Step of a study that adds a run."""
Step = Wait | NewRun | StartFinalComparison | Complete | Fail
