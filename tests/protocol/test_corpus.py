"""A changed message needs a new protocol version; readers and writers keep to every version that is spoken."""

import json
from typing import Annotated

import jsonschema
import pytest
from pydantic import ValidationError

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.protocol import (
    OLDEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    CannotExpress,
    ProtocolMessage,
    Since,
    VersionRange,
    agreed_version,
    expressed,
    is_readable,
)
from tests.protocol.corpus import (
    message_types,
    present_messages,
    present_schemas,
    recorded,
    recorded_versions,
    releases_with,
    tree_of_working_copy,
)
from tests.protocol.sample_messages import ADDED, sample_messages

SPOKEN_VERSIONS = range(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION + 1)
RECORD = "python -m tests.protocol.corpus"
NEXT = PROTOCOL_VERSION + 1


def test_a_change_of_a_message_comes_with_a_new_version() -> None:
    assert recorded(PROTOCOL_VERSION, "schemas") == present_schemas(), (
        f"a protocol message has changed: increase PROTOCOL_VERSION in api_schemas/protocol.py, mark new fields with "
        f"Since({NEXT}), and run `{RECORD}`. Without the increase only if no release has version {PROTOCOL_VERSION}"
    )


def test_the_recorded_messages_are_those_written_now() -> None:
    assert recorded(PROTOCOL_VERSION, "messages") == present_messages(), f"run `{RECORD}`"


def test_every_message_is_in_the_corpus() -> None:
    assert {type(message) for message in sample_messages().values()} == set(message_types().values())


def test_every_version_that_is_spoken_has_a_corpus() -> None:
    assert set(SPOKEN_VERSIONS) <= set(recorded_versions())
    assert PROTOCOL_VERSION - OLDEST_PROTOCOL_VERSION <= 1 <= OLDEST_PROTOCOL_VERSION


def test_a_released_version_does_not_change() -> None:
    for version in recorded_versions():
        for tag, tree in releases_with(version).items():
            assert tree_of_working_copy(version) == tree, f"restore the corpus of version {version} from {tag}"


@pytest.mark.parametrize("version", SPOKEN_VERSIONS)
def test_messages_of_every_spoken_version_are_read(version: int) -> None:
    for name, message in recorded(version, "messages").items():
        reader = message_types()[message["type"]]
        read = reader.read(json.dumps(message["content"]))
        assert expressed(read, version) == message["content"], name


@pytest.mark.parametrize("version", SPOKEN_VERSIONS)
def test_messages_are_written_as_every_spoken_version_reads_them(version: int) -> None:
    schemas = recorded(version, "schemas")
    for name, message in sample_messages().items():
        if version < ADDED.get(name, 0):
            with pytest.raises(CannotExpress, match="upgrade the reader"):
                message.written_for(version)
            continue
        jsonschema.validate(message.written_for(version), schemas[type(message).__name__])


def test_unknown_fields_at_every_depth_are_ignored_by_every_reader() -> None:
    for name, message in sample_messages().items():
        content = message.written_for(PROTOCOL_VERSION)
        assert type(message).read(json.dumps(_with_strangers(content))) == message, name


def _with_strangers(value):
    """Add an unknown field to every object; objects with free keys keep their own."""
    if isinstance(value, list):
        return [_with_strangers(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {
        key: item if key in ("details", "config") and "kind" not in value else _with_strangers(item)
        for key, item in value.items()
    }
    return inner | ({"of_a_later_release": 1} if _is_object(value) else {})


def _is_object(value) -> bool:
    return not set(value) <= {"float32", "bfloat16", "forward"}


class Knob(Schema):
    """Value whose later fields a reader of the first version does not know."""

    width: int = 1
    depth: Annotated[int, Since(NEXT)] = 1
    hint: Annotated[str | None, Since(NEXT, may_be_dropped=True)] = None


class Order(ProtocolMessage):
    """Message with such values."""

    knobs: tuple[Knob, ...]
    by_name: dict[str, Knob] = {}


def test_fields_of_a_later_version_are_left_out_where_they_change_nothing() -> None:
    order = Order(knobs=(Knob(width=2, hint="fast"),), by_name={"a": Knob()})
    assert expressed(order, PROTOCOL_VERSION) == {"knobs": [{"width": 2}], "by_name": {"a": {"width": 1}}}
    assert expressed(order, NEXT) == order.model_dump(mode="json")


def test_a_value_that_an_older_reader_would_miss_is_not_sent() -> None:
    with pytest.raises(CannotExpress, match=rf"Knob.depth \(2\) came with version {NEXT}.*upgrade the reader"):
        expressed(Order(knobs=(), by_name={"a": Knob(depth=2)}), PROTOCOL_VERSION)


def test_messages_ignore_what_schemas_for_people_reject() -> None:
    content = {"knobs": [{"width": 1, "of_a_later_release": 1}], "of_a_later_release": 1}
    assert Order.read(json.dumps(content)) == Order(knobs=(Knob(),))
    with pytest.raises(ValidationError):
        Knob.model_validate({"width": 1, "of_a_later_release": 1})


@pytest.mark.parametrize(
    ("worker", "service", "agreed"),
    [
        ((4, 5), (4, 5), 5),
        ((3, 4), (4, 5), 4),
        ((5, 6), (4, 5), 5),
        ((2, 3), (4, 5), None),
        ((6, 7), (4, 5), None),
    ],
)
def test_neighbouring_releases_agree_on_the_newest_common_version(worker, service, agreed) -> None:
    assert agreed_version(VersionRange(*worker), VersionRange(*service)) == agreed


@pytest.mark.parametrize(("version", "readable"), [(3, False), (4, True), (5, True), (6, True), (7, False)])
def test_within_a_session_a_service_reads_its_versions_and_the_next(version, readable) -> None:
    assert is_readable(version, VersionRange(4, 5)) == readable
