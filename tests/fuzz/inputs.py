"""Inputs for fuzzers: valid ones that are changed at random places, and any bytes. Hypothesis draws and shrinks them."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote_from_bytes

from hypothesis import strategies as st

from tests.support.values.mutated_json import HOSTILE, mutate

_MOST_CHANGES = 5
_JSON_BYTES = b'{}[]",:0129-+.eE\\\x00\xff \n'


@st.composite
def changed_json(draw: st.DrawFn, valid: Sequence[Any]) -> bytes:
    """One of the valid values with some changes, as JSON."""
    value = draw(st.sampled_from(valid))
    random = draw(st.randoms(use_true_random=False))
    return json.dumps(mutate(value, random, draw(st.integers(1, _MOST_CHANGES)))).encode()


@st.composite
def changed_bytes(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """One of the valid texts with some bytes replaced, inserted or cut off."""
    text = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(1, _MOST_CHANGES))):
        place = draw(st.integers(0, max(0, len(text) - 1)))
        match draw(st.sampled_from(("replace", "insert", "cut"))):
            case "replace":
                text[place : place + 1] = bytes([draw(st.sampled_from(_JSON_BYTES))])
            case "insert":
                text[place:place] = draw(st.binary(min_size=1, max_size=8))
            case "cut":
                del text[place:]
    return bytes(text)


def json_like(*valid: Any) -> st.SearchStrategy[bytes]:
    """Inputs for a reader of JSON: changed values mostly, broken texts sometimes."""
    texts = [json.dumps(value).encode() for value in valid]
    return st.one_of(changed_json(valid), changed_json(valid), changed_bytes(texts), st.binary(max_size=64))


def yaml_like(*valid: bytes) -> st.SearchStrategy[bytes]:
    """Inputs for a reader of YAML: changed texts, and lines with the language's own signs."""
    signs = [
        "&a ",
        "*a",
        "<<: ",
        "!!binary ",
        "!!int ",
        "- ",
        "? ",
        ": ",
        "2026-13-01",
        "0o9",
        "1e999",
        "[",
        "{",
        "|\n",
        "'",
    ]
    line = st.lists(st.sampled_from([*signs, "a", "\n", "  "]), max_size=12).map("".join)
    appended = st.tuples(st.sampled_from(valid), line).map(lambda parts: parts[0] + parts[1].encode())
    return st.one_of(changed_bytes(valid), appended, line.map(str.encode))


@st.composite
def cron_texts(draw: st.DrawFn) -> bytes:
    """A cron expression and a time zone on two lines: fields of the language's own signs mostly, any text sometimes."""
    signs = st.sampled_from(
        ["*", "?", "-", ",", "/", "#", "L", "W", "SUN", "JAN", "0", "1", "7", "29", "31", "59", "99"]
    )
    field = st.lists(signs, min_size=1, max_size=6).map("".join)
    fields = st.lists(field, min_size=5, max_size=5).map(" ".join)
    expression = draw(st.one_of(fields, fields, st.lists(field, max_size=7).map(" ".join), st.text(max_size=40)))
    zone = draw(
        st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca"])
    )
    return f"{expression}\n{zone}".encode(errors="surrogatepass")


_HOSTILE_TEXTS = [str(value).encode(errors="surrogatepass") for value in HOSTILE]


@st.composite
def addresses(draw: st.DrawFn, paths: Sequence[str], names: Sequence[str]) -> bytes:
    """Address of a page with a query: known names with hostile values, and any others."""
    words = st.sampled_from([name.encode() for name in names])
    name = st.one_of(words, words, words, st.binary(max_size=12))
    value = st.one_of(
        st.sampled_from(_HOSTILE_TEXTS), st.binary(max_size=24), st.integers().map(lambda n: str(n).encode())
    )
    pairs = draw(st.lists(st.tuples(name, value), max_size=5))
    query = "&".join(f"{quote_from_bytes(key)}={quote_from_bytes(text[:300])}" for key, text in pairs)
    path = draw(st.sampled_from(paths))
    if "{" in path:
        inserted = draw(st.one_of(st.sampled_from(_HOSTILE_TEXTS), st.binary(max_size=12)))
        path = path.partition("{")[0] + quote_from_bytes(inserted[:200], safe="") + path.partition("}")[2]
    return f"{path}?{query}".encode()
