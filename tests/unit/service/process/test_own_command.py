"""Advised commands begin with the words with which the user started Shardtune."""

import os
import sys
from pathlib import Path

import pytest

from shardtune.service.process.own_command import as_called, command_words


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """An executable `shardtune` that is not on the path of a shell."""
    path = tmp_path / "bin" / "shardtune"
    path.parent.mkdir()
    path.touch(mode=0o755)
    return path


def called_with(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Words of the command in a process whose first word, after its interpreter, is the last of these."""
    monkeypatch.setattr(sys, "argv", [words[-1], "tune"])
    monkeypatch.setattr(sys, "orig_argv", [*words, "tune"])
    return command_words()


def test_a_path_is_advised_as_it_was_typed(monkeypatch, program):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(program.parent.parent)
    assert called_with(monkeypatch, "/usr/bin/python3", "bin/shardtune") == ["bin/shardtune"]
    assert called_with(monkeypatch, "/usr/bin/python3", "./bin/shardtune") == ["./bin/shardtune"]
    called_with(monkeypatch, "/usr/bin/python3", "bin/shardtune")
    assert as_called("start it with `shardtune serve`") == "start it with `bin/shardtune serve`"
    assert as_called("shardtune is a name") == "shardtune is a name"


def test_a_name_that_a_shell_finds_stays_a_name(monkeypatch, program):
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    assert called_with(monkeypatch, "/usr/bin/python3", str(program)) == ["shardtune"]
    assert called_with(monkeypatch, "/usr/bin/python3", str(program.parent / ".." / "bin" / "shardtune")) == [
        "shardtune"
    ]


def test_another_installation_than_the_shells_is_advised_by_its_path(monkeypatch, program, tmp_path):
    other = tmp_path / "other" / "shardtune"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert called_with(monkeypatch, "/usr/bin/python3", str(other)) == [str(other)]


def test_a_module_is_run_by_the_same_interpreter(monkeypatch):
    main = "/site-packages/shardtune/__main__.py"
    monkeypatch.setattr(sys, "argv", [main])
    monkeypatch.setattr(sys, "orig_argv", [".venv/bin/python", "-m", "shardtune", "tune"])
    assert command_words() == [".venv/bin/python", "-m", "shardtune"]


@pytest.mark.parametrize("program_name", ["-c", "", "/venv/bin/pytest", "/site/pytest/__main__.py", "shardtune"])
def test_what_is_no_command_of_a_shell_is_not_advised(monkeypatch, program_name):
    assert called_with(monkeypatch, "/usr/bin/python3", program_name) == ["shardtune"]


def test_a_program_without_words_has_no_command_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    assert command_words() == ["shardtune"]


def test_a_path_with_a_blank_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    called_with(monkeypatch, "/usr/bin/python3", f"{tmp_path}/a b/shardtune")
    assert as_called("run `shardtune tune FILE`") == f"run `'{tmp_path}/a b/shardtune' tune FILE`"
