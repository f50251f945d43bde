"""Export of a configuration as files for the programs that run it."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig

ExportFormat = Literal["standard", "training-arguments", "torchtitan", "lightning"]
"""Format of an export. `standard`: our own script, DeepSpeed's JSON and Accelerate's YAML; else the consumer's own
form."""


class Export(Schema):
    """Ready-to-use files."""

    format: ExportFormat
    files: dict[str, str]
    """Content by relative file name."""
    release: str | None = None
    """Release of the consumer that the files are written for, such as `torchtitan 0.2.2`; None for the standard
    files."""
    lossy: tuple[str, ...] = ()
    """Settings that the consumer cannot express: a name, the measured value, and what happens instead."""
    lossy_config: TrialConfig | None = None
    """Configuration that the consumer runs, as near as our words come, where it differs from the measured one."""
