"""Export of a measured configuration as files for other training programs, which reproduce the measured training.

The strategies render their own options (api_schemas.strategies); the modules of this package write these options into
files.
"""

from shardtune.tuner.export.bundle import export, files

__all__ = ["export", "files"]
