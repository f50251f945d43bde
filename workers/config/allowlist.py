"""Allowed code of users: the only scripts and entry points that studies may name on this worker, as chosen by the
worker's owner.

An entry point is found by its installed metadata, a script by its path; neither is imported here.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path

from shardtune.api_schemas.training.models import ModelSpec

GROUP = "shardtune.models"
"""Entry-point group in which packages register their training steps."""


@dataclass(frozen=True)
class Script:
    """Training script of a user that uses the adapter."""

    path: Path
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allowed:
    """Scripts and entry points that the worker's owner allows studies to name as their model, besides the architectures
    of transformers."""

    models: frozenset[str] = frozenset()
    """Names of allowed entry points in the group `shardtune.models`."""
    scripts: Mapping[str, Script] = field(default_factory=dict)
    """Allowed scripts by name."""

    @classmethod
    def of(cls, models: Sequence[str], commands: Mapping[str, str]) -> "Allowed":
        """Check the scripts and entry points that the worker's owner allows, and collect them.

        Raises:
            ValueError: an entry point is not installed, or a command names no script.
        """
        installed = {point.name for point in entry_points(group=GROUP)}
        for name in models:
            if name not in installed:
                raise ValueError(
                    f"--allow-model ({name!r}) is not installed in the entry-point group {GROUP}; "
                    f"there are: {', '.join(sorted(installed)) or 'none'}"
                )
        return cls(frozenset(models), {name: _script(name, command) for name, command in commands.items()})

    def check(self, model: ModelSpec) -> None:
        """Check that a study's model uses only allowed code.

        Raises:
            ValueError: the study names code that is not allowed; the message lists the allowed names.
        """
        if model.entry_point is not None and model.entry_point not in self.models:
            raise ValueError(_rejection("entry_point", model.entry_point, self.models, "--allow-model NAME"))
        if model.script is not None and model.script not in self.scripts:
            raise ValueError(_rejection("script", model.script, self.scripts, "--allow-script NAME=COMMAND"))


def _rejection(
    kind: str, name: str, allowed: Sequence[str] | frozenset[str] | Mapping[str, Script], option: str
) -> str:
    listed = ", ".join(sorted(allowed)) or "none"
    return f"{kind} ({name!r}) is not allowed on this worker; allowed: {listed}. Its owner allows more with {option}"


def _script(name: str, command: str) -> Script:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"--allow-script {name} ({command!r}) cannot be split into words: {error}") from None
    # `python train.py` and `train.py` mean the same: ranks run the script in an interpreter that is already running.
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words or words[0].startswith("-") or not Path(words[0]).is_file():
        raise ValueError(
            f"--allow-script {name} ({command!r}) must name a Python script that exists, then its arguments; "
            f"give it as {name}=/path/to/train.py --option value"
        )
    return Script(Path(words[0]).resolve(), tuple(words[1:]))
