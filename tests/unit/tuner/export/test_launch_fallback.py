"""`launch.sh` runs with `python` where that has torch, and else with the interpreter that measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardtune.tuner.export import launch

SCRIPT = '#!/usr/bin/env bash\nset -euo pipefail\npython="${PYTHON:-python}"\necho "$python"\n'


def chosen(tmp_path: Path, *, has_torch: bool, interpreter: str, **environment: str) -> str:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text(f"#!/bin/sh\nexit {0 if has_torch else 1}\n")
    (programs / "python").chmod(0o755)
    path = tmp_path / "launch.sh"
    path.write_text(launch.with_fallback(SCRIPT, interpreter))
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"} | environment
    return subprocess.run(
        ["bash", str(path)], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("has_torch", "interpreter", "environment", "expected"),
    [
        (True, sys.executable, {}, "python"),
        (False, sys.executable, {}, sys.executable),
        (False, sys.executable, {"PYTHON": "mine"}, "mine"),
        (False, "/nowhere/python", {}, "python"),
    ],
)
def test_the_interpreter_is_the_users_then_one_with_torch(
    tmp_path: Path, has_torch: bool, interpreter: str, environment: dict[str, str], expected: str
) -> None:
    assert chosen(tmp_path, has_torch=has_torch, interpreter=interpreter, **environment) == expected


def test_a_path_with_spaces_and_quotes_is_quoted(tmp_path: Path) -> None:
    odd = tmp_path / "a 'b' $c"
    odd.mkdir()
    (odd / "python").write_text("#!/bin/sh\n")
    (odd / "python").chmod(0o755)
    assert chosen(tmp_path, has_torch=False, interpreter=str(odd / "python")) == str(odd / "python")
