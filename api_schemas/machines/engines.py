"""Engines, the systems that own hosts (such as Slurm or Ray), as `--launcher` names them."""

from collections.abc import Mapping
from typing import Literal, get_args

from shardtune.api_schemas.formatting import listed

EngineName = Literal["slurm", "ray"]
"""Engine over whose hosts a worker trains as one gang."""
LauncherName = Literal["local", EngineName]
"""Launcher of the ranks: this machine, or an engine's hosts."""
RANK_VARIABLES: Mapping[EngineName, tuple[str, ...]] = {
    "slurm": ("SLURM_", "PMI_", "PMIX_", "OMPI_"),
    "ray": ("RAY_",),
}
"""Prefixes of the environment variables from which training libraries conclude that the engine started the rank, and read its
rank number. Ranks must not inherit them."""
ENGINES_IN_WORDS = listed(get_args(EngineName), "or")
"""Every engine, for sentences that tell the user to add one."""
