"""Every place knows every backend and every knob; one that is planted and forgotten somewhere is named with the place."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config
from shardtune.tuner.export.backends.record import AccelerateParts, ConsumerParts, SnippetParts
from shardtune.tuner.search.space.legal_values import Knob
from tests.conformance.registries import (
    EXPORT,
    KNOB_WORDS,
    PAGE,
    PREDICTION,
    PRODUCT,
    RANK,
    SPACE,
    Registries,
    places_without_backend,
    places_without_knob,
)


def test_every_place_knows_every_backend() -> None:
    assert places_without_backend(PRODUCT) == []


@pytest.mark.parametrize("kind", PRODUCT.schemas)
def test_every_place_knows_every_knob(kind: str) -> None:
    assert places_without_knob(PRODUCT, kind) == []


class PlantedConfig(DdpConfig):
    """A backend that DDP is under another name."""

    kind: Literal["planted"] = "planted"  # type: ignore[assignment]


PLANT_BACKEND: dict[str, Callable[[Registries], Registries]] = {
    "api_schemas/training/search_space.py": lambda r: replace(r, listed=(*r.listed, "planted")),
    "tuner/search/space/backends/registry.py": lambda r: replace(
        r, searched={**r.searched, "planted": replace(r.searched["ddp"], config=PlantedConfig)}
    ),
    "tuner/prediction/backends/registry.py": lambda r: replace(
        r, predicted={**r.predicted, "planted": replace(r.predicted["ddp"], codes=(9,))}
    ),
    "tuner/export/backends/registry.py": lambda r: replace(r, exported={**r.exported, "planted": r.exported["ddp"]}),
    "workers/rank/strategies/registry.py": lambda r: replace(r, trainers={**r.trainers, "planted": r.trainers["ddp"]}),
    "service/wording/backend_words.py": lambda r: replace(
        r, backend_words={**r.backend_words, "planted": r.backend_words["ddp"]}
    ),
    "service/pages/static/app.css": lambda r: replace(r, styles=r.styles + ".s-planted { --c: red; }"),
}


def _planted(parts: dict[str, Callable[[Registries], Registries]], start: Registries, forgotten: str) -> Registries:
    for place, plant in parts.items():
        start = start if place == forgotten else plant(start)
    return start


@pytest.mark.parametrize("place", ["", *PLANT_BACKEND])
def test_a_planted_backend_is_missed_in_the_place_that_forgot_it(place: str) -> None:
    union = replace(PRODUCT, schemas={**PRODUCT.schemas, "planted": PlantedConfig})
    actual_places_without_backend = places_without_backend(_planted(PLANT_BACKEND, union, place))
    assert [line.partition(":")[0].partition(" lacks")[0] for line in actual_places_without_backend] == (
        [place] if place else []
    )


class ThinnedConfig(Fsdp2Config):
    """A knob that frees gathered parameters less often."""

    thinned: bool = False


def _plain(strategy: ThinnedConfig) -> Fsdp2Config:
    return Fsdp2Config(**strategy.model_dump(exclude={"thinned"}))


def _schema(r: Registries) -> Registries:
    fsdp2 = r.searched["fsdp2"]
    searched = {**r.searched, "fsdp2": replace(fsdp2, config=ThinnedConfig, defaults=fsdp2.defaults)}
    exported = {**r.exported, "fsdp2": replace(r.exported["fsdp2"], **_consumers(r, says=False))}
    return replace(r, schemas={**r.schemas, "fsdp2": ThinnedConfig}, searched=searched, exported=exported)


def _consumers(r: Registries, says: bool) -> dict[str, Any]:
    """Each consumer's function for the planted configuration: what FSDP2's says, with or without a word on the knob."""
    fsdp2, prefix = PRODUCT.exported["fsdp2"], "# thinned: "

    def snippet(source: Any, strategy: ThinnedConfig) -> SnippetParts:
        parts = fsdp2.snippet(source, _plain(strategy))
        return replace(parts, trainer=f"{parts.trainer}{prefix}{strategy.thinned}") if says else parts

    def accelerate(source: Any, strategy: ThinnedConfig) -> AccelerateParts:
        parts = fsdp2.accelerate(source, _plain(strategy))
        return replace(parts, script_lines=(*parts.script_lines, f"{prefix}{strategy.thinned}")) if says else parts

    def consumer(name: str) -> Callable[[Any, ThinnedConfig], ConsumerParts]:
        def loaded_parts(source: Any, strategy: ThinnedConfig) -> ConsumerParts:
            parts = getattr(fsdp2, name)(source, _plain(strategy))
            done = ThinnedConfig(**parts.strategy.model_dump(), thinned=False if says else strategy.thinned)
            return replace(parts, strategy=done)

        return loaded_parts

    names = ("training_arguments", "torchtitan", "lightning")
    return {"snippet": snippet, "accelerate": accelerate, **{name: consumer(name) for name in names}}


def _row(r: Registries) -> Registries:
    fsdp2 = r.searched["fsdp2"]
    return replace(r, searched={**r.searched, "fsdp2": replace(fsdp2, knobs={**fsdp2.knobs, "thinned": Knob("bool")})})


def _draw(r: Registries) -> Registries:
    fsdp2 = r.searched["fsdp2"]

    def draw(drawing: Any, accumulates: bool) -> None:
        fsdp2.draw(drawing, accumulates)
        drawing.pick("thinned", (False, True))

    return replace(r, searched={**r.searched, "fsdp2": replace(fsdp2, draw=draw)})


def _term(r: Registries) -> Registries:
    fsdp2 = r.predicted["fsdp2"]

    def row(strategy: ThinnedConfig, world_size: int) -> dict[str, float]:
        plain = fsdp2.row(strategy, world_size)
        return {**plain, "blocks_per_unit": 3} if strategy.thinned else plain

    return replace(r, predicted={**r.predicted, "fsdp2": replace(fsdp2, row=row)})


def _reason(r: Registries) -> Registries:
    fsdp2 = r.predicted["fsdp2"]
    reasons = {**fsdp2.without_term, "thinned": "it is planted"}
    return replace(r, predicted={**r.predicted, "fsdp2": replace(fsdp2, without_term=reasons)})


def _statement(r: Registries) -> Registries:
    return replace(r, exported={**r.exported, "fsdp2": replace(r.exported["fsdp2"], **_consumers(r, says=True))})


def _rank(r: Registries) -> Registries:
    return replace(r, rank_sources={**r.rank_sources, "fsdp2": r.rank_sources["fsdp2"] + "\nconfig.thinned\n"})


PLANT_KNOB: dict[str, Callable[[Registries], Registries]] = {
    f"{SPACE.format('fsdp2')}: no row": _row,
    f"{SPACE.format('fsdp2')}: draw": _draw,
    f"{PREDICTION.format('fsdp2')}: no prediction changes": _term,
    f"{EXPORT.format('fsdp2')}: ": _statement,
    RANK.format("fsdp2"): _rank,
    KNOB_WORDS: lambda r: replace(r, knob_words={**r.knob_words, "thinned": ("Planted.", "")}),
    PAGE: lambda r: replace(r, page=r.page + "\n| `thinned` | `false`, `true` | always | |"),
}


@pytest.mark.parametrize("place", ["", *PLANT_KNOB])
def test_a_planted_knob_is_missed_in_the_place_that_forgot_it(place: str) -> None:
    actual_places_without_knob = places_without_knob(
        _planted(PLANT_KNOB, _schema(PRODUCT), place), "fsdp2", varied="thinned"
    )
    assert all("'thinned'" in line and line.startswith(place) for line in actual_places_without_knob)
    assert bool(actual_places_without_knob) is bool(place)


def test_a_planted_knob_without_a_term_needs_a_reason_and_one_with_a_term_has_none() -> None:
    without = _planted(PLANT_KNOB, _schema(PRODUCT), f"{PREDICTION.format('fsdp2')}: no prediction changes")
    assert places_without_knob(_reason(without), "fsdp2", varied="thinned") == []
    stale = places_without_knob(_reason(_term(without)), "fsdp2", varied="thinned")
    assert stale == [f"{PREDICTION.format('fsdp2')}: without_term names 'thinned', which changes a prediction"]
