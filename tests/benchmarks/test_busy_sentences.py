"""`benchmarks.busy` reads the sentences about checkpoints, the baseline and the number of pairs, and finds false ones."""

import json

import pytest

from benchmarks.busy.rows import StudyRows, rows_of
from benchmarks.busy.sentences import check
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig

SLOW, OTHER = TrialConfig(strategy=DdpConfig()), TrialConfig(strategy=Fsdp2Config(dp_shard=2))
FAST = TrialConfig(strategy=DdpConfig(), micro_batch=8)
RATIOS = (0.9, 1.5, 1.6, 1.7)
"""Ratios of the blocks: the first one came before the pairs, and a disturbed run is in it."""


def row(trial: int, purpose: str, speed: float = 100.0, **columns: object) -> dict:
    measured = {"tokens_per_s_per_gpu": speed, "disturbed": columns.pop("disturbed", None)}
    place = {"position": 0, "state": "complete", "comparison_round": 1, "comparison_block": None}
    return place | {"trial_id": trial, "purpose": purpose, "measurement": json.dumps(measured)} | columns


def rows(disturbed_block: int = 0, repeated_defaults: int = 2) -> StudyRows:
    configs = ((SLOW, "default"), (FAST, "sampler"), (OTHER, "default"))
    trials = [
        {"id": n, "number": n, "state": "complete", "origin": origin, "config": json.dumps(plain(config))}
        for n, (config, origin) in enumerate(configs)
    ]
    runs = [row(2, "validation", 70.0, comparison_block=9)] if repeated_defaults > 1 else []
    for block, ratio in enumerate(RATIOS):
        cause = "other programs" if block == disturbed_block else None
        runs.append(row(0, "validation", comparison_block=block))
        runs.append(row(1, "validation", 100 * ratio, comparison_block=block, disturbed=cause))
    saved = json.dumps({"save_s": 0.1, "checkpoint_bytes": 47_700_000})
    runs.append(row(1, "resume_check", measurement=None, resume_check=saved))
    return rows_of({"comparison_round": 1}, trials, [run | {"position": n} for n, run in enumerate(runs)])


def plain(config: TrialConfig) -> dict:
    return config.model_dump(mode="json")


def answer(sentence: str) -> dict:
    sides = {"best": {"config": plain(FAST)}, "baseline": {"config": plain(SLOW)}}
    speedup = {"value": 1.6, "ci95": [1.49, 2.31]}
    return sides | {"speedup": speedup, "trials": {"complete": 3}, "trust": [{"text": sentence}]}


COST = "checkpoints: less than 0.01% of training time with a blocking save every 1,800 s (477 MB/s; the disk takes 322 MB/s)"
COST_NOW = COST.partition(" (")[0]
CHOSEN = "baseline: DDP, micro batch 1, the fastest documented default (by validation runs of 2 defaults)"
ENOUGH = "3 pairs were enough: none of their runs was disturbed, and the whole interval of the speed-up lies above 1"
UNCERTAIN = "how much faster it is stays uncertain: 1.49× to 2.31× (95 % interval of 3 pairs)"


@pytest.mark.parametrize("sentence", [COST, COST_NOW, CHOSEN, ENOUGH, UNCERTAIN])
def test_a_true_sentence_is_read(sentence: str) -> None:
    """The benchmark reported each of these four as unread."""
    statements = check(answer(sentence), rows())
    assert (statements.false, statements.unread) == ((), ())


@pytest.mark.parametrize(
    "sentence",
    [
        COST.replace("less than 0.01%", "0.25%"),
        COST.replace("477 MB/s", "900 MB/s"),
        COST.replace("1,800 s", "18 s"),
        CHOSEN.replace("2 defaults", "3 defaults"),
        CHOSEN.replace("by validation runs of 2 defaults", "by its search run"),
        CHOSEN.replace("by validation runs of 2 defaults", "the only feasible one that ran"),
        ENOUGH.replace("3 pairs", "4 pairs"),
        ENOUGH.replace("3 pairs", "5 pairs"),
        ENOUGH.replace("the whole interval of the speed-up lies above 1", "they rule out a gain of 5 %"),
        UNCERTAIN.replace("1.49", "1.39"),
        UNCERTAIN.replace("3 pairs", "8 pairs"),
    ],
)
def test_a_sentence_that_the_rows_contradict_is_false(sentence: str) -> None:
    assert check(answer(sentence), rows()).false == (sentence,)


def test_a_disturbed_run_among_the_pairs_makes_the_sentence_false() -> None:
    assert check(answer(ENOUGH), rows(disturbed_block=2)).false == (ENOUGH,)


def test_one_repeated_default_was_chosen_by_its_search_run() -> None:
    by_search = CHOSEN.replace("by validation runs of 2 defaults", "by its search run")
    assert check(answer(by_search), rows(repeated_defaults=1)).false == ()
    assert check(answer(CHOSEN), rows(repeated_defaults=1)).false == (CHOSEN,)
