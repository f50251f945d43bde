"""Export of a measured configuration as ready-to-use files that reproduce what was measured.

The strategies render their own options (api_schemas.strategies); these modules write them into files.
"""

from shardtune.tuner.export.bundle import export, files

__all__ = ["export", "files"]
