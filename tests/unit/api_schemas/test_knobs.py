from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from shardtune.api_schemas.knobs import Key, Knob, Lost, When, knobs_of
from shardtune.api_schemas.knobs.declarations import keyed, knobs_by_field, lost_fields, phrases, variables
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig


class Toy(BaseModel):
    """A schema with one field of each kind of knob."""

    kind: Literal["toy"] = "toy"
    size: Annotated[
        int,
        Knob(
            help="Size.",
            variable="SIZE",
            phrases={"1": "one part", "*": "{value} parts"},
            exports={"script": Key("size")},
        ),
    ] = Field(default=2, ge=1, le=8)
    word: Annotated[
        Literal["a", "b"] | None, Knob(help="Word.", within={"size": (2,)}, exports={"script": Key("a_word")})
    ] = "a"
    group: Annotated[bool | int, Knob(help="Group.", exports={"script": Lost("has none", runs=4)})] = True
    stage: Annotated[Literal[1, 2, 3], Knob(help="Stage.", knob="toy_stage")] = 1
    plain: bool = False


def test_a_declaration_is_completed_by_what_its_field_says() -> None:
    knobs = knobs_of(Toy)
    assert [knob.kind for knob in knobs.values()] == ["int", "word", "group", "int"]
    assert knobs["word"].words == ("a", "b", "none")
    assert knobs["size"].expected() == "an integer of at least 1, at most 8" and knobs["size"].default == 2
    assert not knobs["size"].accepts(9) and not knobs["size"].accepts(True) and knobs["size"].accepts(8)
    assert knobs["toy_stage"].accepts(3) and not knobs["toy_stage"].accepts(4)


def test_a_field_without_a_declaration_has_no_knob() -> None:
    assert set(Toy.model_fields) - set(knobs_by_field(Toy)) - {"kind"} == {"plain"}


def test_a_knob_that_does_not_exist_beside_the_others_has_no_key() -> None:
    assert keyed(Toy(), "script") == {"size": 2, "a_word": "a"}
    assert keyed(Toy(size=3), "script") == {"size": 3}


def test_a_lost_knob_has_the_value_that_its_program_trains_with() -> None:
    assert lost_fields(Toy(group=False), "script") == {"group": 4}


def test_a_default_sets_no_variable_and_says_nothing() -> None:
    assert (variables(Toy()), phrases(Toy())) == ({}, [])
    assert (variables(Toy(size=3)), phrases(Toy(size=3))) == ({"SIZE": "3"}, ["3 parts"])
    assert phrases(Toy(size=1)) == ["one part"]


@pytest.mark.parametrize(
    ("when", "is_named", "expected"),
    [
        (When(), False, True),
        (When(on_gpu=False), False, False),
        (When(on_gpu=False, or_named=True), True, True),
        (When(is_named=True), False, False),
        (When(accumulates=False), True, False),
        (When(above={"dp_shard": 1}), False, True),
        (When(above={"dp_shard": 4}), False, False),
        (When(others={"dp_shard": (2,)}), False, False),
    ],
)
def test_a_condition_holds_if_all_its_parts_do(when: When, is_named: bool, expected: bool) -> None:
    drawn = {"dp_shard": 4}
    assert when.holds(on_gpu=True, has_peers=True, accumulates=True, is_named=is_named, drawn=drawn) is expected


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (When(), True),
        (When(on_gpu=False, above={"dp_shard": 1}), False),
        (When(on_gpu=True, above={"dp_shard": 1}), None),
        (When(others={"dp_shard": (2,)}, or_named=True), True),
    ],
)
def test_a_condition_that_asks_for_no_other_knob_is_decided_before_any_is_drawn(
    when: When, expected: bool | None
) -> None:
    assert when.decided(on_gpu=True, has_peers=True, accumulates=True, is_named=True) is expected


def test_strategies_take_their_forms_from_the_declarations() -> None:
    assert set(DdpConfig().to_ddp()) == {"bucket_cap_mb", "gradient_as_bucket_view", "static_graph"}
    assert "stage3_prefetch_bucket_size" not in ZeroConfig(stage=2).keyed("deepspeed")
    assert "round_robin_gradients" not in ZeroConfig(stage=3).keyed("deepspeed")
    assert Fsdp2Config(dp_shard=2, forward_prefetch=2).as_run_by("torchtitan").forward_prefetch == 0
    assert Fsdp2Config(dp_shard=2).calls() == {}
    own_group = Fsdp2Config(dp_shard=2, separate_reduce_scatter_group=True)
    assert own_group.calls() == {"set_separate_reduce_scatter_group": True}


def test_every_knob_of_every_backend_is_a_field_of_the_configuration() -> None:
    assert set(TrialConfig.model_fields) - set(knobs_by_field(TrialConfig)) == {"strategy"}
