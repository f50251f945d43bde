"""Schemas of exports: a training configuration as files for the programs that run it."""

from typing import Literal

from shardtune.api_schemas.base import Schema
from shardtune.api_schemas.strategies import TrialConfig

FineTuningFormat = Literal["trl", "axolotl", "llama-factory", "ms-swift"]
"""Format of a fine-tuning tool."""
LauncherFormat = Literal["skypilot", "dstack", "trainjob", "ray"]
"""Format of a program that starts the standard files on machines."""
ExportFormat = Literal["standard", "training-arguments", "torchtitan", "lightning", FineTuningFormat, LauncherFormat]
"""Format of an exported configuration. `standard`: Shardtune's own script, DeepSpeed's JSON and Accelerate's YAML;
`skypilot`, `dstack`, `trainjob` and `ray`: these files, and one that starts them on machines; other values: the native
format of the named program."""


class Export(Schema):
    """Ready-to-use files of an exported training configuration."""

    format: ExportFormat
    files: dict[str, str]
    """Content of the exported files by relative file name."""
    release: str | None = None
    """Release of the target program that the files are written for, such as `torchtitan 0.3.0`; None for the standard
    files."""
    lossy: tuple[str, ...] = ()
    """Settings that the target program cannot express, each with name, measured value and actual behaviour."""
    lossy_config: TrialConfig | None = None
    """Configuration that the target program actually runs, as closely as Shardtune can express it, if different from
    the measured one."""
