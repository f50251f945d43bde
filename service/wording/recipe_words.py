"""Describe the recipes that a study considered, for the command line and the pages."""

from shardtune.api_schemas.formatting import counted
from shardtune.api_schemas.studies.recipes import ConsideredRecipe, LossComparison, LossVerdict
from shardtune.service.wording import study_words
from shardtune.service.wording.answers.trust_line import Trust

_TONES = {LossVerdict.AS_WELL: "good", LossVerdict.WORSE: "bad", LossVerdict.UNDECIDED: "warn"}


def speed_text(recipe: ConsideredRecipe) -> str:
    """Describe the measured speed of a recipe (a precision, an optimizer or float8) that a study considers, and its
    ratio to the speed of the recipe that the study states."""
    if recipe.tokens_per_s_per_gpu is None:
        return "speed not measured"
    rates = f"{study_words.rate(recipe.tokens_per_s_per_gpu)} tokens/s/GPU"
    if recipe.stated_tokens_per_s_per_gpu is not None:
        rates += f" beside {study_words.rate(recipe.stated_tokens_per_s_per_gpu)}"
    if recipe.speed is None:
        return f"{rates}, {len(recipe.ratios)} pairs are too few for an interval" if recipe.ratios else rates
    low, high = recipe.speed.ci95
    return f"{recipe.speed.value:.2f}x [{low:.2f}, {high:.2f}] the speed in {recipe.speed.pairs} pairs ({rates})"


def memory_text(recipe: ConsideredRecipe) -> str:
    """Describe the peak memory of a recipe (a precision, an optimizer or float8) that a study considers, and of the
    recipe that it states; empty if they were not measured."""
    if recipe.peak_gib is None:
        return ""
    own, stated = recipe.peak_gib, recipe.stated_peak_gib
    beside = "" if stated is None else f" beside {study_words.memory(stated, own)}"
    return f"{study_words.memory(own, stated)}{beside}"


def loss_text(loss: LossComparison) -> str:
    """Describe how a recipe (a precision, an optimizer or float8) changes the training loss, in a sentence that begins
    with the verdict."""
    low, high = loss.interval
    difference = f"loss {loss.difference:+.4f} [{low:+.4f}, {high:+.4f}] against {loss.stated_loss:.4f}"
    basis = f"in the last {loss.compared_steps} of {loss.steps} steps on the same data"
    verdict = {
        LossVerdict.AS_WELL: f"trains as well within {loss.most_difference:g}",
        LossVerdict.WORSE: f"trains worse by more than {loss.most_difference:g}",
        LossVerdict.UNDECIDED: f"not known whether it trains worse by more than {loss.most_difference:g}",
    }[loss.verdict]
    return f"{verdict}: {difference}, {basis}"


def _failure_text(recipe: ConsideredRecipe, failure: str) -> str:
    """Describe a failed run of the comparison of a recipe (a precision, an optimizer or float8), and how many pairs of
    runs before the failure still count."""
    if recipe.tokens_per_s_per_gpu is None or recipe.stated_tokens_per_s_per_gpu is None:
        return f"not compared: {failure}"
    pairs = len(recipe.ratios)
    before = "its first runs" if pairs == 0 else counted(pairs, "pair")
    return f"failed after {before}, whose figures are below: {failure}"


def lines(recipe: ConsideredRecipe) -> tuple[Trust, ...]:
    """Describe a recipe (a precision, an optimizer or float8) in lines about its effect on the loss, its speed and
    memory, with notes; each line has a tone."""
    described = [] if recipe.loss is None else [Trust(_TONES[recipe.loss.verdict], loss_text(recipe.loss))]
    if recipe.failure is not None:
        described.append(Trust("bad", _failure_text(recipe, recipe.failure)))
    if recipe.tokens_per_s_per_gpu is not None:
        figures = [speed_text(recipe), memory_text(recipe)]
        described.append(Trust("quiet", ", ".join(text for text in figures if text)))
    if not recipe.is_winners_config and recipe.description is not None:
        described.append(Trust("quiet", f"run as {recipe.description}"))
    return (*described, *(Trust("warn", note) for note in recipe.notes))
