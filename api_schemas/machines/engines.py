"""Engines, the systems that own hosts (such as Slurm or Ray), as `--launcher` names them."""

from collections.abc import Mapping
from typing import Literal, get_args

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


def in_words(names: tuple[str, ...]) -> str:
    """Join names as a choice: `slurm or ray`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


ENGINES_IN_WORDS = in_words(get_args(EngineName))
"""Every engine, for sentences that tell the user to add one."""
