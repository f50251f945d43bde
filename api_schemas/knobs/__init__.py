"""Declarations of knobs: each knob is declared once, as metadata of its pydantic field. The search space, the pages, the
reference, the predictor's reasons, the exports and the conformance tests read the declaration."""

from shardtune.api_schemas.knobs.condition import When
from shardtune.api_schemas.knobs.consumers import Call, Consumer, Key, Lost, Statement, Unexportable, Written
from shardtune.api_schemas.knobs.declarations import backend_knobs, knobs_of
from shardtune.api_schemas.knobs.knob import ALWAYS, Knob

__all__ = [
    "ALWAYS",
    "Call",
    "Consumer",
    "Key",
    "Knob",
    "Lost",
    "Statement",
    "Unexportable",
    "When",
    "Written",
    "backend_knobs",
    "knobs_of",
]
