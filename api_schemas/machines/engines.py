"""Engines, the systems that own hosts (such as Slurm or Ray), as `--launcher` names them."""

from collections.abc import Mapping
from typing import Literal, get_args

from shardtune.api_schemas.formatting import listed

EngineName = Literal["slurm", "ray"]
"""Engine that provides several hosts, on which one worker runs the ranks of a trial together."""
LauncherName = Literal["local", EngineName]
"""Launcher of a worker's ranks: `local` starts them on the worker's own machine, an engine (Slurm or Ray) on its hosts.
"""
RANK_VARIABLES: Mapping[EngineName, tuple[str, ...]] = {
    "slurm": ("SLURM_", "PMI_", "PMIX_", "OMPI_"),
    "ray": ("RAY_",),
}
"""Prefixes of environment variables, by engine. Training libraries that find such a variable conclude that the engine
started the rank, and read its rank number from it. Ranks must therefore not inherit them."""
ENGINES_IN_WORDS = listed(get_args(EngineName), "or")
"""Names of all engines, joined by "or", for sentences that tell the user to add an engine."""
