"""Every place knows every backend and every knob; one that is planted and forgotten somewhere is named with the place."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import pytest
from pydantic import create_model

from shardtune.api_schemas.knobs import Call, Consumer, Knob, Lost, Statement, Written
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config
from shardtune.service.wording.knob_words import KNOBS as KNOB_WORDS
from shardtune.tuner.search.space.backends.registry import KNOBS
from tests.conformance.registries import (
    ADAPTER,
    EXPORT,
    FIELDS,
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


LOST = Lost("cannot thin")
EXPORTS: dict[Consumer, Statement] = {
    "script": Call("thin"),
    "accelerate": LOST,
    "training_arguments": LOST,
    "torchtitan": LOST,
    "lightning": LOST,
}
THINNED = Knob(help="Planted.", tries=(False, True), without_term="it is planted", exports=EXPORTS)


def _planted_knob(knob: Knob | None) -> Registries:
    """Registries in which FSDP2 has one more field, which frees gathered parameters less often."""
    declared: Any = Annotated[bool, knob] if knob else bool
    config = create_model("ThinnedConfig", __base__=Fsdp2Config, thinned=(declared, False))
    searched = {**PRODUCT.searched, "fsdp2": replace(PRODUCT.searched["fsdp2"], config=config)}
    return replace(PRODUCT, schemas={**PRODUCT.schemas, "fsdp2": config}, searched=searched)


def test_a_knob_that_a_method_of_the_model_applies_needs_its_declaration_only() -> None:
    assert places_without_knob(_planted_knob(THINNED), "fsdp2", varied="thinned") == []


def _without(consumer: Consumer) -> dict[Consumer, Statement]:
    return {name: statement for name, statement in EXPORTS.items() if name != consumer}


FORGOTTEN: dict[str, tuple[Knob | None, str]] = {
    "declaration": (None, f"{FIELDS}: 'thinned' of fsdp2 declares no Knob"),
    "help": (replace(THINNED, help=""), f"{FIELDS}: 'thinned' has no help"),
    "values": (replace(THINNED, tries=()), f"{FIELDS}: 'thinned' has neither tries nor values_text"),
    "draw": (replace(THINNED, tries=(), values_text="two"), f"{SPACE.format('fsdp2')}: draw never decides 'thinned'"),
    "term": (
        replace(THINNED, without_term=""),
        f"{PREDICTION.format('fsdp2')}: no prediction changes with 'thinned', nor does its without_term say why",
    ),
    "rank": (
        replace(THINNED, exports=EXPORTS | {"script": Written("`thin`")}),
        f"{RANK.format('fsdp2')} does not read 'thinned'",
    ),
    "adapter": (
        replace(THINNED, exports=EXPORTS | {"script": Written("`thin`")}),
        f"{ADAPTER} does not read 'thinned'",
    ),
    "script": (
        replace(THINNED, exports=EXPORTS | {"script": Written("`thin`")}),
        f"{EXPORT.format('fsdp2')}: train_snippet.py says nothing of 'thinned'",
    ),
    **{
        f"statement of {name}": (
            replace(THINNED, exports=_without(name)),
            f"{FIELDS}: 'thinned' says nothing of {name!r} in exports",
        )
        for name in EXPORTS
    },
    "torchtitan's file": (
        replace(THINNED, exports=EXPORTS | {"torchtitan": Written("`thin`")}),
        f"{EXPORT.format('fsdp2')}: torchtitan says nothing of 'thinned'",
    ),
}


@pytest.mark.parametrize("part", FORGOTTEN)
def test_a_planted_knob_is_missed_in_the_place_that_forgot_it(part: str) -> None:
    """Every configuration has the planted knob, so a few of them do."""
    knob, sentence = FORGOTTEN[part]
    assert sentence in places_without_knob(_planted_knob(knob), "fsdp2", varied="thinned", draws=4)


@pytest.mark.parametrize(
    ("consumer", "method"), [("accelerate", "to_accelerate"), ("training_arguments", "to_training_arguments")]
)
def test_a_knob_that_a_form_of_the_schema_forgot_names_the_form(consumer: Consumer, method: str) -> None:
    planted = _planted_knob(replace(THINNED, exports=EXPORTS | {consumer: Written("`thin`")}))
    lines = places_without_knob(planted, "fsdp2", varied="thinned", draws=12)
    assert lines and all(line.startswith(f"api_schemas/strategies/fsdp2.py: {method}: ") for line in lines)


def test_a_planted_knob_with_a_term_has_no_reason_against_one() -> None:
    planted = _planted_knob(THINNED)
    fsdp2 = planted.predicted["fsdp2"]

    def row(strategy: Any, world_size: int) -> dict[str, float]:
        return {**fsdp2.row(strategy, world_size), **({"blocks_per_unit": 3} if strategy.thinned else {})}

    with_term = replace(planted, predicted={**planted.predicted, "fsdp2": replace(fsdp2, row=row)})
    assert places_without_knob(with_term, "fsdp2", varied="thinned") == [
        f"{PREDICTION.format('fsdp2')}: 'thinned' changes a prediction, against its without_term"
    ]


def test_the_wording_knows_every_declared_knob() -> None:
    assert set(KNOB_WORDS) == {"backend", *KNOBS}
    assert all(words.help for words in KNOB_WORDS.values())
