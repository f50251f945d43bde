"""Each optimizer has a row in every room that must know it."""

from collections.abc import Mapping
from typing import Any

import pytest

from shardtune.api_schemas.training.optimizers import OPTIMIZERS
from shardtune.tuner.export import optimizers as exported
from shardtune.tuner.prediction import optimizers as predicted
from shardtune.workers.rank.strategies import optimizers as trained

ROOMS: dict[str, Mapping[str, Any]] = {
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
    planted = {other: {**rows, "planted": None} for other, rows in ROOMS.items()}
    planted[room] = ROOMS[room]
    assert lacking(planted, {*OPTIMIZERS, "planted"}) == [f"{room} lacks 'planted'"]


def test_the_kind_of_each_default_is_its_key() -> None:
    assert {kind: optimizer.kind for kind, optimizer in OPTIMIZERS.items()} == {kind: kind for kind in OPTIMIZERS}
