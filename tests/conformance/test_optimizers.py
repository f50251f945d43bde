"""Each optimizer has a row in every room that must know it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from shardtune.api_schemas.training import optimizers as declared
from shardtune.api_schemas.training.optimizers import OPTIMIZERS, AdamW, AnyOptimizer, OptimizerSchema, replaced
from shardtune.tuner.export import optimizers as exported
from shardtune.tuner.prediction import optimizers as predicted
from shardtune.workers.rank.strategies import optimizers as trained


def _kinds(union: Any) -> dict[str, Any]:
    """Optimizers of a union, by kind; members may have a tag."""
    members = (get_args(member)[0] if hasattr(member, "__metadata__") else member for member in get_args(union))
    return {get_args(member.model_fields["kind"].annotation)[0]: member for member in members}


ROOMS: dict[str, Mapping[str, Any]] = {
    "api_schemas/training/optimizers.py: AnyOptimizer": _kinds(AnyOptimizer),
    "api_schemas/training/optimizers.py: _Settings": _kinds(get_args(declared._Settings)[0]),
    "workers/rank/strategies/optimizers/registry.py": trained.MAKERS,
    "tuner/prediction/optimizers/registry.py": predicted.OPTIMIZERS,
    "tuner/export/optimizers/registry.py": exported.OPTIMIZERS,
}


def lacking(rooms: Mapping[str, Mapping[str, Any]], kinds: set[str]) -> list[str]:
    """One sentence for each room that lacks a kind of optimizer, or has one that is not in the union."""
    missing = [f"{room} lacks {kind!r}" for room, rows in rooms.items() for kind in sorted(kinds - set(rows))]
    return missing + [
        f"{room} has {kind!r}, which no optimizer is" for room, rows in rooms.items() for kind in set(rows) - kinds
    ]


def test_every_room_knows_every_optimizer() -> None:
    assert lacking(ROOMS, set(OPTIMIZERS)) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_planted_optimizer_is_missed_in_the_room_that_forgot_it(room: str) -> None:
    planted: dict[str, Mapping[str, Any]] = {other: {**rows, "planted": None} for other, rows in ROOMS.items()}
    planted[room] = ROOMS[room]
    assert lacking(planted, {*OPTIMIZERS, "planted"}) == [f"{room} lacks 'planted'"]


def test_the_kind_of_each_default_is_its_key() -> None:
    assert {kind: optimizer.kind for kind, optimizer in OPTIMIZERS.items()} == {kind: kind for kind in OPTIMIZERS}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_another_optimizer_replaces_the_stated_one_with_its_settings_and_back(kind: str) -> None:
    stated = AdamW(lr=1e-4, beta2=0.99, weight_decay=0.0)
    other = replaced(stated, kind)
    assert other.kind == kind and replaced(other, "adamw") == stated


def test_a_kind_that_no_stated_optimizer_can_be_replaced_by_is_an_error() -> None:
    class Planted(OptimizerSchema):
        kind: str = "planted"

    with pytest.raises(NotImplementedError):
        Planted.from_adamw(AdamW())


def wrong_versions(optimizers: Mapping[str, Any]) -> list[str]:
    """One sentence for each kind whose first protocol version is not that of the recorded messages."""
    folders = (Path(__file__).parents[1] / "protocol/versions").iterdir()
    texts = {int(folder.name): (folder / "schemas.json").read_text() for folder in folders if folder.name.isdecimal()}
    return [
        f"api_schemas/training/optimizers.py: {kind!r} came with version {first}, and its `since` is {since}"
        for kind, optimizer in optimizers.items()
        if (first := min((version for version, text in texts.items() if f'"{kind}"' in text), default=None))
        != (since := getattr(optimizer, "since", None))
    ]


def test_every_optimizer_says_since_which_version_workers_know_it() -> None:
    assert wrong_versions(OPTIMIZERS) == []


def test_a_planted_optimizer_without_its_version_is_named() -> None:
    class Planted(AdamW):
        since = 1

    sentences = wrong_versions({**OPTIMIZERS, "adamw-8bit": Planted()})
    assert sentences == ["api_schemas/training/optimizers.py: 'adamw-8bit' came with version 2, and its `since` is 1"]
