"""The stored form of schema values leaves out what is absent, and nothing else."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig
from shardtune.db.tables.stored_form import stored_form
from shardtune.db.tables.types import Stored


class _Part(Schema):
    kind: str = "plain"
    size: int


class _FormerPart(_Part):
    pass


class _NewerPart(_Part):
    doubled: bool = False


class _Former(Schema):
    parts: tuple[_FormerPart, ...]


class _Newer(Schema):
    parts: tuple[_NewerPart, ...]
    note: str | None = None
    limit: int = 0
    by_name: dict[str, _NewerPart] = {}


def _stored(value: _Newer) -> Any:
    return stored_form(TypeAdapter(_Newer), value)


def test_a_former_release_reads_what_uses_no_newer_field() -> None:
    stored = _stored(_Newer(parts=(_NewerPart(size=1), _NewerPart(size=2, kind="other"))))
    former = _Former.model_validate(stored)
    assert [(part.kind, part.size) for part in former.parts] == [("plain", 1), ("other", 2)]


@pytest.mark.parametrize(
    "value",
    [
        _Newer(parts=(_NewerPart(size=1, doubled=True),)),
        _Newer(parts=(), note=""),
        _Newer(parts=(), limit=3),
        _Newer(parts=(), by_name={"a": _NewerPart(size=1)}),
    ],
)
def test_a_newer_field_that_is_used_is_stored(value: _Newer) -> None:
    assert _Newer.model_validate(_stored(value)) == value
    with pytest.raises(ValidationError):
        _Former.model_validate(_stored(value))


def test_required_fields_and_other_defaults_stay() -> None:
    stored = _stored(_Newer(parts=(_NewerPart(size=0),), by_name={"a": _NewerPart(size=0)}))
    assert stored == {"parts": [{"kind": "plain", "size": 0}], "by_name": {"a": {"kind": "plain", "size": 0}}}


def test_a_configuration_without_newer_knobs_names_none_of_them() -> None:
    config = TrialConfig.model_validate({"strategy": {"kind": "fsdp2", "dp_shard": 2}, "micro_batch": 1})
    column: Stored[TrialConfig] = Stored(TrialConfig)
    stored = column.process_bind_param(config, None)  # type: ignore[arg-type] # the dialect is not looked at
    assert "activation_offload" not in stored
    assert stored["strategy"]["kind"] == "fsdp2"
    assert TrialConfig.model_validate(stored) == config
