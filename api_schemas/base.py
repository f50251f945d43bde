"""Base class of all values exchanged between components: immutable, without unknown fields, and identified by a hash of
their content."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from shardtune.api_schemas.field_docs import field_docs
from shardtune.api_schemas.strict_numbers import exact

GIB = 1 << 30
"""Bytes in one GiB, the unit of every field whose name ends in `_gib`."""

Bound = Literal["compute", "memory bandwidth", "intra-node link", "network", "offload to the host", "host launches"]
"""Resource that a step needs; offload needs the link to the host and, for the optimizer's update, the host's CPU."""
Dtype = Literal["float32", "bfloat16", "float16"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_BETWEEN_DTYPES = ", "


def listed_dtypes(names: Iterable[str]) -> str:
    """Write names of dtypes in the form of `Fingerprint.native_dtypes`: `float32, bfloat16`."""
    return _BETWEEN_DTYPES.join(names)


def dtypes_listed(text: str) -> tuple[str, ...]:
    """Read the names of dtypes from the form of `Fingerprint.native_dtypes`."""
    return tuple(text.split(_BETWEEN_DTYPES))


class Schema(BaseModel):
    """Base class of all values in the API, which cannot be changed after creation. An unknown field is an error, so
    that a misspelt knob is never ignored, and a text is not accepted for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema of the class, made strict for numbers: a text is not accepted as a number."""
        return cast(CoreSchema, exact(cls, handler(source)))

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Build pydantic's JSON schema with the docstring of each field as its description."""
        schema = handler(core)
        fields = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in fields:
                fields[name].setdefault("description", text)
        return schema

    def canonical_json(self) -> str:
        """JSON text of the value with sorted keys and no spaces; equal values give equal text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def content_key(self) -> str:
        """Hash of the value's canonical JSON as 32 hexadecimal digits, equal on every machine."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:32]


class Band(Schema):
    """Expected value together with the band that contains the true value with a probability of 90 %."""

    expected: float
    """Expected value."""
    low: float
    """Lower end of the band."""
    high: float
    """Upper end of the band."""
