"""Run a checker, from the environment of these tests or from the system, and take what it says."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class NoChecker(Exception):
    """A program that a check needs is not installed."""


def program_path(name: str) -> str:
    """Where the program is.

    Raises:
        NoChecker: nowhere.
    """
    beside = Path(sys.executable).with_name(name)
    where = str(beside) if beside.exists() else shutil.which(name)
    if where is None:
        raise NoChecker(
            f"{name} is missing: `make check-deploy` installs packages, tests/setup-machine.sh --deploy programs"
        )
    return where


def complaints(words: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """What a checker that is silent about what is right has to say; it ends with 0 then, too."""
    ended = run(words, cwd, environment)
    stated = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return stated or ([f"{words[0]} ended with {ended.returncode}"] if ended.returncode else [])


def failures(words: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """What a checker that also tells what is right says when something is not."""
    ended = run(words, cwd, environment)
    return [f"{words[0]}: {(ended.stdout + ended.stderr).strip()}"] if ended.returncode else []


def run(
    words: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [program_path(words[0]), *words[1:]],
        cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
