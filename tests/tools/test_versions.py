"""Rows of `make test-versions`: what each installs and runs, what becomes of its outcome, and what it says before it starts."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.tools.versions import (
    BEGIN,
    END,
    NEWEST,
    PAGE,
    ROOT,
    ROWS,
    TESTS,
    Outcome,
    _check_room,
    _is_recorded,
    constraints,
    install_commands,
    interpreter,
    line,
    main,
    outcome_of,
    with_line,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
VERSIONS = {
    "python": "3.12.1",
    "torch": "2.14.1",
    "deepspeed": "1",
    "transformers": "2",
    "accelerate": "3",
    "torchao": "4",
}
REPORT = """<testsuites><testsuite>
<testcase classname="tests.rank.test_parity" name="test_a[ddp]"/>
<testcase classname="tests.rank.test_parity" name="test_b[ddp]"><failure message="no"/></testcase>
<testcase classname="tests.rank.test_parity" name="test_b[zero]"><error message="no"/></testcase>
<testcase classname="tests.rank.test_trace" name="test_c"><skipped message="no GPU"/></testcase>
</testsuite></testsuites>"""


def test_rows_are_versions_that_the_project_allows_and_one_is_that_of_the_constraints() -> None:
    (torch,) = (line for line in map(Requirement, PROJECT["optional-dependencies"]["worker"]) if line.name == "torch")
    assert [name for name, row in ROWS.items() if row.torch not in torch.specifier or row.torch[:4] not in name] == []
    assert all(row.python in SpecifierSet(PROJECT["requires-python"]) for row in ROWS.values())
    assert PINNED["torch"] in {row.torch for row in ROWS.values()}
    assert {row.python for row in ROWS.values()} == {"3.11", "3.12", "3.13"}
    assert [path for path in TESTS if not (ROOT / path).exists()] == []


def test_the_page_that_says_how_to_run_them_lists_the_rows() -> None:
    page = (ROOT / "docs/contributing/dependencies.md").read_text().partition("## Other versions of torch")[2]
    assert [f"| `{name}` | {row.python} | {row.torch} |" for name, row in ROWS.items()] == re.findall(
        r"^\| `torch-.*$", page, re.MULTILINE
    )


def test_torch_and_what_follows_it_are_free_and_nothing_else() -> None:
    kept = constraints((ROOT / "constraints.txt").read_text()).splitlines()
    names = {line.partition("==")[0] for line in kept if "==" in line}
    assert PINNED.keys() - names == {"torch", *NEWEST}


def test_a_row_installs_its_torch_before_what_is_built_with_it(tmp_path: Path) -> None:
    environment, *pips = install_commands(ROWS["torch-2.14"], "python3.12", tmp_path / "torch-2.14")
    assert environment == ["python3.12", "-m", "venv", "--clear", str(tmp_path / "torch-2.14")]
    assert all(str(tmp_path / "torch-2.14.constraints") in command for command in pips)
    assert ["torch==2.14.1" in command for command in pips] == [False, True, True]
    assert "--no-build-isolation" in pips[-1] and "-e" in pips[-1]


def test_a_line_has_the_versions_the_counts_and_some_failed_tests(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    outcome = outcome_of(tmp_path / "report.xml")
    assert outcome == Outcome(1, 1, ["test_parity::test_b", "test_parity::test_b"])
    assert line("torch-2.14", outcome, VERSIONS, 31.4, "2026-11-28, abc1234") == (
        "| torch-2.14 | 3.12.1 | 2.14.1 | 1 | 2 | 3 | 4 | 1 passed, 2 failed, 1 skipped | `test_parity::test_b` | 31 min "
        "| 2026-11-28, abc1234 |"
    )
    many = line("torch-2.14", Outcome(0, 0, list("abcde")), VERSIONS, 1, "")
    assert "`a`, `b`, `c`, 2 more" in many


def test_a_row_replaces_its_earlier_line_and_this_commit_s_rows_are_left_out() -> None:
    page = PAGE.read_text()
    for name in ("torch-2.15", "torch-2.11", "torch-2.15"):
        page = with_line(page, name, line(name, Outcome(1, 0, []), VERSIONS, 1, "2026-11-28, abc1234"))
    table = page.partition(BEGIN)[2].partition(END)[0].splitlines()
    assert [row.split("|")[1].strip() for row in table[2:] if "abc1234" in row] == ["torch-2.11", "torch-2.15"]
    assert {row.count("|") for row in table} == {table[0].count("|")}
    assert _is_recorded(page, "torch-2.11", "abc1234")
    assert not _is_recorded(page, "torch-2.11", "0000000")
    assert not _is_recorded(page, "torch-2.13", "abc1234")


def test_a_missing_python_ends_the_run_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    message = r"row torch-2\.11 needs Python 3\.12, and `python3\.12` is not on PATH .*; install it, or choose .* ROW=torch-2\.13"
    with pytest.raises(SystemExit, match=message):
        interpreter("torch-2.11")


def test_a_command_that_starts_no_such_python_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "python3.12"
    command.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    answers = {"(3, 12)\n": True, "(3, 11)\n": False, "": False}
    for output, is_there in answers.items():
        done = subprocess.CompletedProcess[str]([], 0, output)
        if is_there:
            assert interpreter("torch-2.11", run=lambda *_, done=done, **__: done) == "python3.12"
        else:
            with pytest.raises(SystemExit, match="does not start"):
                interpreter("torch-2.11", run=lambda *_, done=done, **__: done)


def test_a_full_disk_and_an_unknown_row_are_named_with_the_remedy() -> None:
    with pytest.raises(SystemExit, match=r"torch-2\.14 needs 10 GiB free .*, and 3\.2 are; remove"):
        _check_room("torch-2.14", 3.21)
    _check_room("torch-2.14", 10)
    with pytest.raises(SystemExit, match=r"^ROW \(torch-1\) is no row; use one of torch-2\.11, "):
        main(["torch-1"])
