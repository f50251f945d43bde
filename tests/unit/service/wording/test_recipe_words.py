"""Sentences about considered recipes: what each costs in training comes first."""

import pytest

from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.recipes import ConsideredRecipe, LossComparison, LossVerdict, RecipeSpeed
from shardtune.api_schemas.studies.study_result import StudyResult, Verdict
from shardtune.service.cli import summary
from shardtune.service.wording import recipe_words
from tests.support.values.synthetic_studies import contender_of, study_of

RECIPE = ConsideredRecipe(
    name="bf16-true",
    config=TrialConfig(strategy=DdpConfig()),
    description="DDP",
    tokens_per_s_per_gpu=1300.0,
    stated_tokens_per_s_per_gpu=1000.0,
    speed=RecipeSpeed(value=1.3, ci95=(1.28, 1.33), pairs=3),
    ratios=(1.28, 1.3, 1.33),
    peak_gib=1.5,
    stated_peak_gib=2.5,
    loss=LossComparison(
        steps=200,
        compared_steps=100,
        loss=3.2,
        stated_loss=2.9,
        difference=0.3,
        interval=(0.28, 0.32),
        most_difference=0.02,
        verdict=LossVerdict.WORSE,
    ),
)


def texts(**changes):
    return [(line.tone, line.text) for line in recipe_words.lines(RECIPE.model_copy(update=changes))]


def test_a_recipe_that_trains_worse_is_said_so_before_what_it_gains():
    worse, gain = texts()
    assert worse[0] == "bad" and worse[1].startswith("trains worse by more than 0.02: loss +0.3000 [+0.2800, +0.3200]")
    assert "in the last 100 of 200 steps on the same data" in worse[1]
    assert gain == (
        "quiet",
        "1.30x [1.28, 1.33] the speed in 3 pairs (1,300 tokens/s/GPU beside 1,000), 1.50 GiB beside 2.50 GiB",
    )


@pytest.mark.parametrize(
    ("verdict", "tone", "words"),
    [(LossVerdict.AS_WELL, "good", "trains as well within 0.02"), (LossVerdict.UNDECIDED, "warn", "not known whether")],
)
def test_each_verdict_has_its_words(verdict, tone, words):
    assert RECIPE.loss is not None
    said = texts(loss=RECIPE.loss.model_copy(update={"verdict": verdict}))[0]
    assert said[0] == tone and said[1].startswith(words)


def test_what_could_not_be_compared_says_why():
    failed = texts(
        loss=None, failure="no memory", tokens_per_s_per_gpu=None, notes=("a note",), is_winners_config=False
    )
    assert failed == [("bad", "not compared: no memory"), ("quiet", "run as DDP"), ("warn", "a note")]
    few = texts(speed=None, stated_peak_gib=None, peak_gib=None)
    assert few[1][1] == "1,300 tokens/s/GPU beside 1,000, 3 pairs are too few for an interval"


def test_a_recipe_that_failed_after_its_first_pairs_says_that_beside_their_figures():
    loss, failed, figures = texts(failure="no memory", speed=None, ratios=(1.3, 1.31))
    assert failed == ("bad", "failed after 2 pairs, whose figures are below: no memory")
    assert loss[1].startswith("trains worse") and "2 pairs are too few" in figures[1]
    assert texts(failure="no memory", speed=None, ratios=(1.3,))[1][1].startswith("failed after 1 pair, whose")
    alone = texts(failure="no memory", speed=None, ratios=(), loss=None, stated_tokens_per_s_per_gpu=None)
    assert alone[0] == ("bad", "not compared: no memory")


def test_recipes_close_the_answer_of_the_command_line_and_its_json():
    study, best = study_of(), contender_of(TrialConfig(strategy=DdpConfig()))
    plain = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED)
    result = plain.model_copy(update={"recipes": (RECIPE,)})
    rows = summary.as_text(study, result).splitlines()
    at = rows.index("recipe      bf16-true, another training than the answer")
    assert rows[at + 1].startswith("            - trains worse by more than 0.02")
    assert summary.as_json(study, result)["recipes"][0]["loss"]["verdict"] == "worse"
    assert summary.as_json(study, plain)["recipes"] == []
