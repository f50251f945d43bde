"""Declarations of knobs: each knob is declared once, as metadata of its pydantic field. The search space, the pages, the
reference, the predictor's reasons, the exports and the conformance tests read the declaration."""

from shardtune.api_schemas.knobs.condition import When
from shardtune.api_schemas.knobs.consumers import Call, Consumer, Key, Lost, Refused, Statement, Written
from shardtune.api_schemas.knobs.declared import backend_knobs, knobs_of
from shardtune.api_schemas.knobs.knob import Knob

__all__ = [
    "Call",
    "Consumer",
    "Key",
    "Knob",
    "Lost",
    "Refused",
    "Statement",
    "When",
    "Written",
    "backend_knobs",
    "knobs_of",
]
