"""Ready-to-use files of a measured configuration: what was measured is what is written.

The strategies render their own options (api_schemas.strategies); these modules put them into files.
"""

from shardtune.tuner.export.bundle import export, files

__all__ = ["export", "files"]
