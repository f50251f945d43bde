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
    """Step of a study: do nothing until a run ends or a worker requests work."""

    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class NewTrial:
    """Step of a study: add a trial that measures this configuration."""

    config: TrialConfig
    origin: TrialOrigin
    rejections: tuple[Rejection, ...]
    prediction: TrialPrediction | None
    reason: TrialReason | None = None
    undecided_s: StepTimeRange | None = None
    """Range of step times, in seconds, within which the trial's measurement has to be precise, because small
    differences decide there.
    """


@dataclass(frozen=True)
class NewValidationRun:
    """Step of a study: add a validation run of this trial to this comparison block (runs executed directly after each
    other). The blocks make up the final comparison, which decides about the study's answer.
    """

    trial_number: int
    comparison_block: int
    undecided_s: StepTimeRange | None = None


@dataclass(frozen=True)
class NewResumeRun:
    """Step of a study: add a resume check of this trial, which has come out of the final comparison as the answer.
    The check saves a checkpoint, resumes from it and compares the losses.
    """

    trial_number: int


@dataclass(frozen=True)
class NewSustainedRun:
    """Step of a study: add the sustained run of this trial, which has come out of the final comparison as the answer.
    It trains for minutes and shows the speed under lasting load; the verdict stays.
    """

    trial_number: int


@dataclass(frozen=True)
class NewRecipeRun:
    """Step of a study: add a run to a block of runs that compares recipes (numerical formats and optimizers). The run
    uses the study's own recipe, or one that the user wants considered.
    """

    trial_number: int
    """Number of the trial whose configuration is the study's answer."""
    recipe: RecipeRun
    comparison_block: int


@dataclass(frozen=True)
class NewRehearsalRun:
    """Step of a study: rehearse a configuration that is projected to the target, that is, run its first steps untimed
    with the target's number of ranks. The study's verdict is known before.
    """

    trial_number: int
    """Number of the trial that measured this configuration on the study's own cluster."""
    config: TrialConfig
    """Configuration on the target."""


@dataclass(frozen=True)
class StartFinalComparison:
    """Step of a study: end the search. The finalists are then compared in paired runs; a single finalist is only
    checked.
    """

    final_comparison: Finalists
    reason: StudyReason | None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Complete:
    """Step of a study: end it successfully, with this result."""

    result: StudyResult
    reason: StudyReason | None = None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True)
class Fail:
    """Step of a study: fail the study, because it cannot have a result."""

    reason: StudyReason
    rejections: tuple[Rejection, ...] = ()


NewRun = NewTrial | NewValidationRun | NewResumeRun | NewSustainedRun | NewRecipeRun | NewRehearsalRun
"""Step of a study that adds a run."""
Step = Wait | NewRun | StartFinalComparison | Complete | Fail
