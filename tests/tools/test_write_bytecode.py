"""`make setup` writes the bytecode of what the processes import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shardtune.service.wording as imported
from tests.tools.write_bytecode import main


def test_every_module_of_a_package_gets_bytecode(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "tests.tools.write_bytecode", imported.__name__]
    subprocess.run(command, env={**environment, "PYTHONPYCACHEPREFIX": str(tmp_path)}, check=True)
    written = {path.name.split(".")[0] for path in tmp_path.rglob("service/wording/**/*.pyc")}
    (folder,) = imported.__path__
    modules = {path.stem for path in Path(folder).rglob("*.py")}
    assert modules == written and len(modules) > 10


def test_a_failed_import_leaves_no_process_behind(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    """The second process ran on after the first had failed, and its error was never shown."""
    monkeypatch.setattr("tests.tools.write_bytecode.PACKAGES", ("absent_first", "absent_second"))
    monkeypatch.setattr(sys, "argv", ["write_bytecode"])
    assert main() != 0
    errors = capfd.readouterr().err
    assert "absent_first" in errors and "absent_second" in errors
