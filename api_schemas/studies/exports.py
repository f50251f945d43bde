"""A configuration as files of those who run it."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig

ExportFormat = Literal["standard", "training-arguments", "torchtitan", "lightning"]
"""`standard`: our own script, DeepSpeed's JSON and Accelerate's YAML; else the consumer's own form."""


class Export(Schema):
    """Ready-to-use files."""

    format: ExportFormat
    files: dict[str, str]
    """Content by relative file name."""
    release: str | None = None
    """What they are written for, such as `torchtitan 0.2.2`; None for the standard files."""
    lossy: tuple[str, ...] = ()
    """What the consumer cannot express: a name, what was measured, and what happens instead."""
    lossy_config: TrialConfig | None = None
    """What the consumer does, as near as our words come, where that differs from what was measured."""
