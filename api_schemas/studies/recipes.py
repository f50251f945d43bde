"""Schemas of the recipes that a study considers: other precisions and optimizers, and float8, which change what is trained.

A study's answer never crosses them. Each is run beside the answer, and the result says what it brings and what it costs
in training.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.api_schemas.training import attention_dtypes
from shardtune.api_schemas.training import float8 as float8_training
from shardtune.api_schemas.training.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS, replaced
from shardtune.api_schemas.training.workload import PRECISIONS, Workload, WorkloadRequest

MOST_CONSIDERED = 4
"""Maximum number of recipes that a study considers: each takes runs of its own."""
FEWEST_LOSS_STEPS = 20
"""Fewest steps over which the losses of two recipes are compared."""
RECIPES: tuple[str, ...] = (*PRECISIONS, *OPTIMIZERS, *float8_training.CONSIDERED)
"""Names of recipes: precisions, kinds of optimizers, and float8 beside the stated precision."""


def _known(name: str) -> str:
    if name not in RECIPES:
        raise ValueError(f"consider ({name!r:.60}) is no recipe; use some of {', '.join(RECIPES)}")
    return name


ConsideredName = Annotated[str, Field(max_length=50), AfterValidator(_known)]
"""Name of a recipe that a study considers."""


def changed(workload: Workload, name: str) -> Workload:
    """Return the workload of a recipe: with another precision and no float8, with another optimizer at the same learning
    rate (`adamw-bf16` in bf16-true), or with float8 in the stated precision.

    Raises:
        ValueError: the workload cannot be trained with the recipe; the message names the field and the remedy.
    """
    if name in PRECISIONS:
        attention_dtypes.check(workload.attention, PRECISIONS[name])
        # An optimizer of bfloat16 weights has no meaning beside others.
        fits = workload.optimizer.master_dtype in (None, PRECISIONS[name].master_dtype)
        optimizer = workload.optimizer if fits else replaced(workload.optimizer, DEFAULT_OPTIMIZER)
        return workload.model_copy(update={"precision": PRECISIONS[name], "float8": None, "optimizer": optimizer})
    scaling = float8_training.CONSIDERED.get(name)
    change = _with_optimizer(workload, name) if scaling is None else {"float8": scaling}
    fields = {field: getattr(workload, field) for field in WorkloadRequest.model_fields}
    try:
        return Workload(**fields | change)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def _with_optimizer(workload: Workload, kind: str) -> dict[str, object]:
    """Return the fields of a workload that another optimizer changes: the precision, too, where it updates weights of one
    dtype alone."""
    optimizer = replaced(workload.optimizer, kind)
    if optimizer.master_dtype in (None, workload.precision.master_dtype):
        return {"optimizer": optimizer}
    precision = PRECISIONS["bf16-true"]
    attention_dtypes.check(workload.attention, precision)
    return {"optimizer": optimizer, "precision": precision}


def is_stated(workload: WorkloadRequest, name: str) -> bool:
    """Whether a workload already trains with the recipe."""
    if workload.float8 is None:
        is_precision = workload.precision is not None and name == workload.precision.name
    else:
        # Beside float8, the name of a precision means the training without it.
        is_precision = float8_training.CONSIDERED.get(name) == workload.float8
    return is_precision or name == workload.optimizer.kind


def check_names(names: tuple[str, ...], workload: WorkloadRequest, *, is_script: bool) -> None:
    """Reject recipes that a study cannot compare, whatever its cluster is.

    Raises:
        ValueError: names the field, its value and the remedy.
    """
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise ValueError(f"consider ({twice!r}) names a recipe twice; name it once")
    stated = next((name for name in names if is_stated(workload, name)), None)
    if stated is not None:
        raise ValueError(f"consider ({stated!r}) is what the workload states already; leave it out")
    if names and is_script:
        raise ValueError(
            f"consider ({names[0]!r}) needs a model that Shardtune trains: a script of your own (model.script) applies dtypes "
            "and optimizer itself; leave it out, or run a second study with the other workload"
        )


class RecipeRun(Schema):
    """Recipe and configuration of one run of a comparison of recipes."""

    name: str | None
    """Name of the considered recipe; None: the one that the study states."""
    config: TrialConfig
    """Configuration of the run: the study's answer, or the fastest trial that can train with the recipe."""
    loss_steps: int = 0
    """Number of first steps whose losses are compared; 0 in all but the first run of a recipe."""


class LossVerdict(StrEnum):
    """Verdict on a recipe from its losses and the stated one's over the same data."""

    AS_WELL = "as_well"
    """The interval of the difference ends below the bound: the recipe trains as well within it."""
    WORSE = "worse"
    """The interval of the difference begins above the bound: the recipe trains worse."""
    UNDECIDED = "undecided"
    """The interval of the difference contains the bound."""


class LossComparison(Schema):
    """Losses of a recipe and of the stated one over the same data, from equal initial weights."""

    steps: int
    """Number of steps that both trained."""
    compared_steps: int
    """Number of last steps whose mean losses are compared."""
    loss: float
    """Mean loss of the recipe over the compared steps."""
    stated_loss: float
    """Mean loss of the stated recipe over the compared steps."""
    difference: float
    """Mean of the paired differences, the recipe's loss less the stated one's; above 0 the recipe trains worse."""
    interval: tuple[float, float]
    """95 % interval of the difference over these steps by batch means (`tuner.verdict.loss_difference`). Another seed or
    a longer training may differ by more."""
    most_difference: float
    """Bound of the difference (`most_loss_difference`)."""
    verdict: LossVerdict


class RecipeSpeed(Schema):
    """Speed of a recipe relative to the stated one, in paired runs."""

    value: float
    """Median of the pairs' speed ratios, the recipe's over the stated one's."""
    ci95: tuple[float, float]
    """95 % interval of the ratio, by the tests of the final comparison."""
    pairs: int


class ConsideredRecipe(Schema):
    """A recipe that a study considered: speed, memory and losses beside those of the stated recipe. It changes what is
    trained, so it is never the study's answer."""

    name: str
    config: TrialConfig | None
    """Configuration that was run; None if no trial of the study can train with the recipe."""
    description: str | None = None
    """Short description of the configuration."""
    is_winners_config: bool = True
    """Whether the configuration is the study's answer; otherwise it is the fastest trial that can train with the
    recipe."""
    tokens_per_s_per_gpu: float | None = None
    """Median speed of the recipe's runs in tokens per second and GPU."""
    stated_tokens_per_s_per_gpu: float | None = None
    """Median speed of the stated recipe's runs beside them."""
    speed: RecipeSpeed | None = None
    """Ratio of the speeds with its interval; None with too few pairs."""
    ratios: tuple[float, ...] = ()
    """Ratio of the recipe's speed to the stated one's in each pair."""
    peak_gib: float | None = None
    """Peak GiB of the recipe's runs: reserved on a GPU, allocated on CPU ranks."""
    stated_peak_gib: float | None = None
    """Peak GiB of the stated recipe's runs, of the same kind."""
    loss: LossComparison | None = None
    """Comparison of the losses; None if a run failed before they were known."""
    failure: str | None = Field(default=None, examples=["loss is nan at step 12"])
    """Reason why the recipe could not be compared, or failed after its first pairs, whose figures stand beside it; None
    if it was compared to the end."""
    notes: tuple[str, ...] = ()
    """Notes for people, such as runs that did not repeat their losses."""
