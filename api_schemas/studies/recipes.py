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
"""Maximum number of recipes (other precisions and optimizers) that a study considers; each needs additional runs."""
FEWEST_LOSS_STEPS = 20
"""Minimum number of steps over which the losses of two recipes are compared."""
RECIPES: tuple[str, ...] = (*PRECISIONS, *OPTIMIZERS, *float8_training.CONSIDERED)
"""Names of all recipes: precisions, kinds of optimizers, and `float8` forms, which are added to the workload's
precision."""


def _known(name: str) -> str:
    if name not in RECIPES:
        raise ValueError(f"consider ({name!r:.60}) is no recipe; use some of {', '.join(RECIPES)}")
    return name


ConsideredName = Annotated[str, Field(max_length=50), AfterValidator(_known)]
"""Name of a recipe (another precision or optimizer) that a study is asked to consider, such as `adamw-8bit`."""


def changed(workload: Workload, name: str) -> Workload:
    """Return a copy of the workload that trains with the named recipe. It is another precision without float8, another
    optimizer at the same learning rate (`adamw-bf16` also changes the precision to bf16-true), or float8 in the
    workload's precision.

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
    """Return the fields that a workload must change for another optimizer: the optimizer, and also the precision if the
    new optimizer updates only weights of another dtype."""
    optimizer = replaced(workload.optimizer, kind)
    if optimizer.master_dtype in (None, workload.precision.master_dtype):
        return {"optimizer": optimizer}
    precision = PRECISIONS["bf16-true"]
    attention_dtypes.check(workload.attention, precision)
    return {"optimizer": optimizer, "precision": precision}


def is_stated(workload: WorkloadRequest, name: str) -> bool:
    """Whether a workload already trains with the precision or optimizer that the recipe names."""
    if workload.float8 is None:
        is_precision = workload.precision is not None and name == workload.precision.name
    else:
        # Beside float8, the name of a precision means the training without it.
        is_precision = float8_training.CONSIDERED.get(name) == workload.float8
    return is_precision or name == workload.optimizer.kind


def check_names(names: tuple[str, ...], workload: WorkloadRequest, *, is_script: bool) -> None:
    """Reject recipes (precisions or optimizers) that a study cannot compare on any cluster.

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
    """Run that compares recipes: the recipe (precision or optimizer) and the configuration with which it trains."""

    name: str | None
    """Name of the considered recipe (another precision or optimizer). If None, the run trains the workload's own
    recipe."""
    config: TrialConfig
    """Configuration of the run: the study's best one if it can train with the recipe, otherwise the fastest trial that
    can."""
    loss_steps: int = 0
    """Number of steps, counted from the first, whose losses are compared. It is 0 in all runs of a recipe except the
    first."""


class LossVerdict(StrEnum):
    """Verdict on a considered recipe (another precision or optimizer): its losses compared with those of the workload's
    own recipe on the same data."""

    AS_WELL = "as_well"
    """The considered recipe trains as well as the workload's own one: the whole interval of the loss difference lies
    below the allowed bound."""
    WORSE = "worse"
    """The considered recipe trains worse than the workload's own one: the whole interval of the loss difference lies
    above the allowed bound."""
    UNDECIDED = "undecided"
    """The comparison decides nothing, because the interval of the loss difference contains the allowed bound."""


class LossComparison(Schema):
    """Losses of a considered recipe and of the workload's own recipe. Both trained on the same data, from equal initial
    weights."""

    steps: int
    """Number of steps that both recipes trained."""
    compared_steps: int
    """Number of steps, counted back from the last, over which the mean losses are compared."""
    loss: float
    """Mean loss of the considered recipe over the compared steps."""
    stated_loss: float
    """Mean loss of the workload's own recipe over the compared steps."""
    difference: float
    """Mean difference in loss over the compared steps: the considered recipe's loss minus that of the workload's own
    recipe. A value above 0 means that the considered recipe trains worse."""
    interval: tuple[float, float]
    """95 % interval of the mean loss difference over the compared steps, by batch means
    (`tuner.verdict.loss_difference`). With another seed or in a longer training the difference may lie outside it."""
    most_difference: float
    """Largest loss difference that is allowed (`most_loss_difference` of the study)."""
    verdict: LossVerdict


class RecipeSpeed(Schema):
    """Speed of a considered recipe compared with the speed of the workload's own recipe, in pairs of runs."""

    value: float
    """Speed of the considered recipe divided by that of the workload's own recipe: the median over the pairs of
    runs."""
    ci95: tuple[float, float]
    """95 % interval of the speed ratio, calculated as in the final comparison of a study."""
    pairs: int


class ConsideredRecipe(Schema):
    """Recipe (another precision or optimizer) that a study considered: its speed, memory and losses beside those of the
    workload's own recipe. A recipe changes what is trained, so it is never the study's answer."""

    name: str
    config: TrialConfig | None
    """Configuration with which the recipe was run; None if no trial of the study can train with the recipe."""
    description: str | None = None
    """Short description of the configuration."""
    is_winners_config: bool = True
    """Whether the recipe was run with the study's best configuration. If False, that configuration cannot train with
    it, and the fastest trial that can was used."""
    tokens_per_s_per_gpu: float | None = None
    """Median speed of the considered recipe's runs in tokens per second and GPU."""
    stated_tokens_per_s_per_gpu: float | None = None
    """Median speed, in tokens per second and GPU, of the runs that train the workload's own recipe for comparison."""
    speed: RecipeSpeed | None = None
    """Speed of the considered recipe compared with the workload's own recipe, with its interval; None if there were too
    few pairs."""
    ratios: tuple[float, ...] = ()
    """Speed of the considered recipe divided by that of the workload's own recipe, for each pair of runs."""
    peak_gib: float | None = None
    """Peak GiB of the runs that train the considered recipe: memory reserved on a GPU, or allocated on CPU ranks."""
    stated_peak_gib: float | None = None
    """Peak GiB of the runs that train the workload's own recipe for comparison: memory reserved on a GPU, or allocated
    on CPU ranks."""
    loss: LossComparison | None = None
    """Comparison of the losses of the considered recipe and of the workload's own recipe. None if a run failed before
    its losses were known."""
    failure: str | None = Field(default=None, examples=["loss is nan at step 12"])
    """Reason why the recipe could not be compared, or why it failed after some pairs, whose figures are kept. None if
    the comparison was completed."""
    notes: tuple[str, ...] = ()
    """Notes for people, such as that repeated runs did not give equal losses."""
