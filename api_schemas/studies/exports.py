"""Schemas of exports: a training configuration as files for the programs that run it."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig

FineTuningFormat = Literal["trl", "axolotl", "llama-factory", "ms-swift"]
"""Format of a fine-tuning tool."""
LauncherFormat = Literal["skypilot", "dstack", "trainjob", "ray"]
"""Export format for a program that starts the standard files on machines, such as SkyPilot."""
ExportFormat = Literal["standard", "training-arguments", "torchtitan", "lightning", FineTuningFormat, LauncherFormat]
"""Format of an exported configuration. `standard` means Shardtune's own script, DeepSpeed's JSON and Accelerate's YAML.
`skypilot`, `dstack`, `trainjob` and `ray` add a file with which that program starts them on machines. Each other value
is the native format of the program that it names."""


class Export(Schema):
    """Ready-to-use files of an exported training configuration."""

    format: ExportFormat
    files: dict[str, str]
    """Content of the exported files, by their names relative to the folder of the export."""
    release: str | None = None
    """Release of the program for which the files are written, such as `torchtitan 0.3.0`; None for the standard
    files."""
    lossy: tuple[str, ...] = ()
    """Settings that the program cannot express: the name of each, its measured value, and what the program does
    instead. Those of the standard files that only one file loses begin with its name, as `accelerate.yaml: …`."""
    lossy_config: TrialConfig | None = None
    """Configuration with which the program will train, as far as Shardtune can express it. It is given only if it
    differs from the measured one."""
