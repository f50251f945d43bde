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
    """Path of the program.

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
    """Complaints of a checker that prints only complaints; it ends with 0 then, too."""
    ended = run(words, cwd, environment)
    stated = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    return stated or ([f"{words[0]} ended with {ended.returncode}"] if ended.returncode else [])


def failures(words: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None) -> list[str]:
    """Output of a checker that failed, for checkers that also print what passed."""
    ended = run(words, cwd, environment)
    return [f"{words[0]}: {(ended.stdout + ended.stderr).strip()}"] if ended.returncode else []


def run(
    words: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [program_path(words[0]), *words[1:]],
        cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
