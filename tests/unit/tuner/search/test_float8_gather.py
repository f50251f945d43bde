"""Where a search draws FSDP2's gathers in float8, and what rejects a configuration with them."""

from itertools import islice

import pytest

from shardtune.api_schemas.protocol import CannotExpress, expressed
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, sample_groups
from shardtune.api_schemas.strategies.fields import float8_gather
from shardtune.api_schemas.strategies.recipe_support import float8_support
from shardtune.api_schemas.training.search_space import SpaceLimits
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.tuner.search import space
from tests.support.values.tuner_inputs import TINY, cpu, gpus

GATHERED = Fsdp2Config(dp_shard=8, float8_gather=True)


def workload(recipe: str | None = "tensorwise") -> Workload:
    return Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["bf16-mixed"], float8=recipe)


def searched(recipe: str | None = "tensorwise", hidden: int = 64, on_cpu: bool = False, **knobs: object) -> space.Space:
    limits = SpaceLimits.model_validate({"backends": ["fsdp2"], "knobs": {"micro_batch": 1, **knobs}})
    cluster = cpu(4) if on_cpu else gpus()
    return space.build(workload(recipe), cluster, TINY.model_copy(update={"hidden_size": hidden}), limits)


def drawn(found: space.Space) -> list[Fsdp2Config]:
    strategies = [config.strategy for config in islice(found.enumerate(), 0, 20_000, 7)]
    assert all(isinstance(strategy, Fsdp2Config) for strategy in strategies)
    return [strategy for strategy in strategies if isinstance(strategy, Fsdp2Config)]


@pytest.mark.parametrize("on_cpu", [True, False], ids=["cpu", "gpus"])
def test_a_search_in_float8_with_one_scale_a_weight_draws_both(on_cpu: bool) -> None:
    strategies = drawn(searched(on_cpu=on_cpu))
    assert {strategy.float8_gather for strategy in strategies if strategy.dp_shard > 1} == {False, True}
    assert {strategy.float8_gather for strategy in strategies if strategy.dp_shard == 1} == {False}
    gathered = [strategy for strategy in strategies if strategy.float8_gather]
    assert {strategy.reshard_after_forward for strategy in gathered} == {True, False}
    assert not any(strategy.cpu_offload for strategy in gathered)


@pytest.mark.parametrize("recipe", ["rowwise", None])
def test_other_workloads_draw_none_and_reject_limits_that_need_them(recipe: str | None) -> None:
    assert {strategy.float8_gather for strategy in drawn(searched(recipe))} == {False}
    assert {strategy.float8_gather for strategy in drawn(searched(recipe, float8_gather=[False, True]))} == {False}
    words = r"space.knobs.float8_gather \(true\) with workload.float8 \((none|'rowwise')\): it needs .*; leave it out"
    for stated in (True, [True]):
        with pytest.raises(ValueError, match=words):
            searched(recipe, float8_gather=stated)


def test_a_limit_is_obeyed() -> None:
    required = drawn(searched(float8_gather=True))
    assert required and all(strategy.float8_gather and strategy.dp_shard > 1 for strategy in required)
    assert {strategy.float8_gather for strategy in drawn(searched(float8_gather=False))} == {False}


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"dp_shard": 1}, "it needs dp_shard above 1"),
        ({"cpu_offload": True}, r"it needs cpu_offload \(false\)"),
        ({"reshard_after_forward": 4}, "it needs reshard_after_forward true or false"),
        ({"dp_shard": 8, "hidden": 60}, "it needs dp_shard to divide the rows"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_limits_that_contradict_each_other_are_rejected(others: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        searched(float8_gather=True, **others)  # type: ignore[arg-type]


def test_other_limits_win_where_both_values_are_allowed() -> None:
    for others in ({"cpu_offload": True}, {"reshard_after_forward": 4}, {"dp_shard": 1}):
        assert {strategy.float8_gather for strategy in drawn(searched(**others))} == {False}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dp_shard": 1}, r"float8_gather \(true\) with dp_shard \(1\) would gather nothing; set"),
        ({"dp_shard": 8, "reshard_after_forward": 4}, r"with reshard_after_forward \(4\) would gather from groups"),
        ({"dp_shard": 8, "cpu_offload": True}, r"with cpu_offload \(true\) would compute scales on the host"),
    ],
)
def test_illegal_configurations_name_both_fields(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Fsdp2Config.model_validate({**fields, "float8_gather": True})


@pytest.mark.parametrize("recipe", ["rowwise", None])
def test_a_workload_without_one_scale_a_weight_rejects_them(recipe: str | None) -> None:
    config = TrialConfig(strategy=GATHERED)
    with pytest.raises(ValueError, match=r"float8_gather \(true\) with workload.float8 .*; set float8_gather to false"):
        sample_groups.check(config, gpus(), workload(recipe))
    assert not float8_support.can_train(config, recipe)  # type: ignore[arg-type]
    assert float8_support.can_train(config, "tensorwise")
    assert float8_support.can_train(TrialConfig(strategy=DdpConfig()), None)


def test_a_study_says_that_it_leaves_out_what_its_limits_name() -> None:
    (note,) = float8_gather.dropped_note({"float8_gather": [False, True]}, "rowwise")
    assert note.endswith("it is not searched") and "'rowwise'" in note
    for knobs, recipe in (
        ({"float8_gather": [False, True]}, "tensorwise"),
        ({"float8_gather": False}, None),
        ({}, None),
    ):
        assert float8_gather.dropped_note(knobs, recipe) == ()  # type: ignore[arg-type]


def test_the_default_changes_no_content_key_and_an_older_worker_gets_no_run_with_the_knob() -> None:
    config = TrialConfig(strategy=Fsdp2Config(dp_shard=8))
    stored = config.model_dump()
    del stored["strategy"]["float8_gather"]
    assert TrialConfig.model_validate(stored).content_key() == config.content_key()
    assert TrialConfig(strategy=GATHERED).content_key() != config.content_key()
    assert "float8_gather" not in str(expressed(config, 1))
    with pytest.raises(CannotExpress, match="float8_gather"):
        expressed(TrialConfig(strategy=GATHERED), 1)
    assert "float8 gathers" in TrialConfig(strategy=GATHERED).describe() and "float8" not in config.describe()
