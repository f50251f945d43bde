"""Tables of knobs, from the declarations on the fields of configurations: what a search tries, and how exports name it."""

from collections.abc import Mapping

from docs.generate import sources
from docs.generate.context import PageContext
from docs.generate.markdown import code, table
from shardtune.api_schemas.knobs import Call, Consumer, Key, Knob, Lost, Statement, Unexportable, Written
from shardtune.api_schemas.knobs.condition import value_text, values_words

COLUMNS: Mapping[Consumer, str] = {
    "script": "`train_snippet.py`",
    "deepspeed": "`ds_config.json`",
    "accelerate": "Accelerate",
    "training_arguments": "Trainer",
    "torchtitan": "torchtitan",
    "lightning": "Lightning",
}
"""Headings of the programs' columns, in their order."""


def knobs(_context: PageContext, backend: str) -> str:
    """Knobs of a backend, or of every backend (`common`).

    Raises:
        ValueError: no backend of that name.
    """
    rows = [(code(name), _values(knob), _condition(knob), knob.upstream or code(name)) for name, knob in _of(backend)]
    return table(("knob", "values", "searched when", "upstream"), rows)


def knob_statements(_context: PageContext, backend: str) -> str:
    """Names of a backend's knobs in each consumer of exports, or the reasons why they are lost there.

    Raises:
        ValueError: no backend of that name.
    """
    known = _of(backend)
    stated = {consumer for _, knob in known for consumer in _statements(knob)}
    consumers = [consumer for consumer in COLUMNS if consumer in stated]
    rows = [
        (code(name), *(_words(_statements(knob).get(consumer), knob) for consumer in consumers))
        for name, knob in known
        if _statements(knob)
    ]
    return table(("knob", *(COLUMNS[consumer] for consumer in consumers)), rows)


def lost_knobs(_context: PageContext) -> str:
    """Knobs that each consumer of exports trains with another value, as their declarations say."""
    rows = [(name, "; ".join(_lost(consumer))) for consumer, name in COLUMNS.items() if _lost(consumer)]
    return table(("program", "trains with its own value of"), rows)


def _lost(consumer: Consumer) -> list[str]:
    """Lost knobs of each backend that has any; those of every backend come first, without a backend's name."""
    by_backend = {
        backend: [code(name) for name, knob in known.items() if isinstance(_statements(knob).get(consumer), Lost)]
        for backend, known in sources.knobs().items()
    }
    return [
        ("" if backend == "common" else f"{backend}: ") + ", ".join(names)
        for backend, names in by_backend.items()
        if names
    ]


def _of(backend: str) -> list[tuple[str, Knob]]:
    by_backend = sources.knobs()
    if backend not in by_backend:
        raise ValueError(f"knobs ({backend}) must be of one of {', '.join(by_backend)}")
    return list(by_backend[backend].items())


def _values(knob: Knob) -> str:
    return knob.values_text or ", ".join(code(value_text(value)) for value in knob.tries)


def _condition(knob: Knob) -> str:
    parts = [*(values_words(name, values) for name, values in knob.within.items()), knob.when.words()]
    return knob.when_text or ", ".join(part for part in parts if part) or "always"


def _statements(knob: Knob) -> Mapping[Consumer, Statement]:
    if not knob.variable:
        return knob.exports
    text = Written(f"the ranks' environment: {code(knob.variable)}")
    return {consumer: text for consumer in COLUMNS if consumer != "deepspeed"} | dict(knob.exports)


def _words(statement: Statement | None, knob: Knob) -> str:
    match statement:
        case Key(name):
            return code(name)
        case Call(method):
            return f"`{method}(…)`"
        case Written(text):
            return text
        case Lost(reason, runs):
            value = knob.default if runs is None else runs
            return f"lost: {reason}, trains with {code(value_text(value))}"
        case Unexportable(reason):
            return f"rejected: {reason}"
        case None:
            return ""
