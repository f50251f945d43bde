"""`python -m tests.tools.versions [ROW]`: run the tests that depend on torch with other versions of it (`make test-versions`).

Each row has an environment of its own in build/versions: one version of torch, and the newest transformers, accelerate and
DeepSpeed that go with it. A row's outcome becomes a line of docs/measurements/versions.md. Without ROW, rows that this
commit has recorded are left out, so that a run that was ended goes on. Asks the package index.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "measurements" / "versions.md"
BEGIN, END = "<!-- make test-versions: begin -->\n", "<!-- make test-versions: end -->\n"
FOLDER = ROOT / "build" / "versions"
FREE_GIB = 10
"""GiB that must be free for a row's environment. torch 2.14.1 and its CUDA libraries alone are 4.2 GiB unpacked, and pip
keeps 2.6 GiB of files in its cache."""


class Row(NamedTuple):
    """Versions that are tested together."""

    python: str
    torch: str


ROWS = {
    # GPU images bring this pair.
    "torch-2.11": Row("3.12", "2.11.0"),
    "torch-2.13": Row("3.11", "2.13.0"),
    "torch-2.14": Row("3.12", "2.14.1"),
    "torch-2.15": Row("3.13", "2.15.0"),
}
TESTS = (
    "tests/rank",
    "tests/unit/workers",
    "tests/unit/traces",
    "tests/conformance/test_exports_parse.py",
    "tests/conformance/exports_train",
)
"""Tests of ranks, of the adapter, of traces and of exports."""
NEWEST = (
    "accelerate",
    "bitsandbytes",
    "deepspeed",
    "hf-xet",
    "huggingface_hub",
    "peft",
    "safetensors",
    "setuptools",
    "tokenizers",
    "torchao",
    "transformers",
)
"""Packages that follow torch: torch 2.11.0 excludes setuptools 82 and later. All others have the versions of
constraints.txt."""
SHOWN = ("torch", "deepspeed", "transformers", "accelerate", "torchao")
MOST_NAMED = 3
"""Number of failed tests that a line names; `build/versions/ROW.xml` has all of them."""


class Outcome(NamedTuple):
    """Result of a row's tests."""

    passed: int
    skipped: int
    failed: list[str]


def main(rows: Sequence[str]) -> int:
    """Run the named rows, or those without a line of this commit; returns the exit code."""
    if unknown := [name for name in rows if name not in ROWS]:
        raise SystemExit(f"ROW ({unknown[0]}) is no row; use one of {', '.join(ROWS)}")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    chosen = list(rows) or [name for name in ROWS if not _is_recorded(PAGE.read_text(), name, commit)]
    # All interpreters first: the last row must not fail after hours.
    interpreters = {name: interpreter(name) for name in chosen}
    failures = 0
    for name in chosen:
        outcome, versions, minutes = _run(name, interpreters[name])
        measured = f"{time.strftime('%Y-%m-%d', time.gmtime())}, {commit}"
        PAGE.write_text(with_line(PAGE.read_text(), name, line(name, outcome, versions, minutes, measured)))
        failures += len(outcome.failed)
    return 1 if failures else 0


def interpreter(name: str, run: Callable[..., "subprocess.CompletedProcess[str]"] = subprocess.run) -> str:
    """Command of a row's Python.

    Raises:
        SystemExit: this machine has no such Python.
    """
    command = f"python{ROWS[name].python}"
    if shutil.which(command):
        # pyenv has a command for a version that is not selected; it fails.
        answer = run(
            [command, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False
        )
        if answer.stdout.strip() == f"({ROWS[name].python.replace('.', ', ')})":
            return command
    raise SystemExit(
        f"row {name} needs Python {ROWS[name].python}, and `{command}` is not on PATH or does not start; install it, or choose "
        f"another row: make test-versions ROW={next(other for other in ROWS if other != name)}"
    )


def constraints(text: str) -> str:
    """Constraints of all rows: those of constraints.txt without torch and what follows it."""
    free = {"torch", *NEWEST}
    return "".join(f"{line}\n" for line in text.splitlines() if line.partition("==")[0] not in free)


def beside(folder: Path, kind: str) -> Path:
    """File beside a row's environment; the name of a row has a dot."""
    return folder.with_name(f"{folder.name}.{kind}")


def install_commands(row: Row, python: str, folder: Path) -> list[list[str]]:
    """Commands that make a row's environment, as `make setup` makes `.venv`."""
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["-c", str(beside(folder, "constraints"))]
    return [
        [python, "-m", "venv", "--clear", str(folder)],
        # The pip that comes with Python 3.11 knows no --group.
        [*pip, "pip"],
        [*pip, f"torch=={row.torch}", "setuptools", "wheel"],
        [*pip, f"torch=={row.torch}", "--no-build-isolation", "-e", ".[service,worker,ray,mcp]", "--group", "dev"],
    ]


def _run(name: str, python: str) -> tuple[Outcome, Mapping[str, str], float]:
    """Make a row's environment, unless it is there, and run the tests in it. Returns the outcome, the versions and the
    minutes of the tests."""
    folder, ready = FOLDER / name, beside(FOLDER / name, "ready")
    FOLDER.mkdir(parents=True, exist_ok=True)
    shared = constraints((ROOT / "constraints.txt").read_text())
    beside(folder, "constraints").write_text(shared)
    commands = install_commands(ROWS[name], python, folder)
    plan = json.dumps([commands, shared, (ROOT / "pyproject.toml").read_text()])
    if not ready.exists() or ready.read_text() != plan:
        _check_room(name, shutil.disk_usage(FOLDER).free / (1 << 30))
        sys.stdout.write(
            f"{name}: installing Python {ROWS[name].python} with torch {ROWS[name].torch} into {folder}: gigabytes, of which "
            f"{FREE_GIB} must be free\n"
        )
        # Without it DeepSpeed's setup.py fails where it sees a GPU and no CUDA toolkit.
        for command in commands:
            subprocess.run(command, cwd=ROOT, env=os.environ | {"DS_IGNORE_CUDA_DETECTION": "1"}, check=True)
        ready.write_text(plan)
    executable, report = str(folder / "bin" / "python"), beside(folder, "xml")
    report.unlink(missing_ok=True)
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(folder / "torch-extensions"), "OMP_NUM_THREADS": "1"}
    for module in ("shardtune.workers.rank.process.cpu_adam", "tests.tools.build_operators"):
        subprocess.run([executable, "-m", module], cwd=ROOT, env=environment, check=True)
    begin = time.monotonic()
    tests = [executable, "-m", "pytest", "-n", "3", f"--junitxml={report}", *TESTS]
    code = subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode
    if code not in (0, 1):
        raise SystemExit(f"row {name}: pytest ended with {code} and without an outcome; nothing was recorded")
    return outcome_of(report), _versions(executable), (time.monotonic() - begin) / 60


def _check_room(name: str, free_gib: float) -> None:
    if free_gib < FREE_GIB:
        raise SystemExit(
            f"row {name} needs {FREE_GIB} GiB free on the disk of build/, and {free_gib:.1f} are; remove what you do not need, "
            "such as other rows in build/versions"
        )


def outcome_of(report: Path) -> Outcome:
    """Outcome that pytest wrote (`--junitxml`)."""
    counts: Counter[str] = Counter()
    failed = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name'].partition('[')[0]}")
        else:
            counts["skipped" if "skipped" in kinds else "passed"] += 1
    return Outcome(counts["passed"], counts["skipped"], failed)


def _versions(executable: str) -> dict[str, str]:
    """Versions of Python and of the shown packages in an environment."""
    program = (
        "import importlib.metadata as m, json, platform, sys; "
        "print(json.dumps({'python': platform.python_version(), **{name: m.version(name) for name in sys.argv[1:]}}))"
    )
    answer = subprocess.run([executable, "-c", program, *SHOWN], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions


def line(name: str, outcome: Outcome, versions: Mapping[str, str], minutes: float, measured: str) -> str:
    """Line of the page's table."""
    counts = f"{outcome.passed} passed, {len(outcome.failed)} failed, {outcome.skipped} skipped"
    distinct = sorted(set(outcome.failed))
    named = [f"`{test}`" for test in distinct[:MOST_NAMED]]
    named += [f"{len(distinct) - MOST_NAMED} more"] if len(distinct) > MOST_NAMED else []
    cells = (name, versions["python"], *(versions[package] for package in SHOWN), counts, ", ".join(named) or "–")
    return f"| {' | '.join((*cells, f'{minutes:.0f} min', measured))} |"


def with_line(page: str, name: str, new_line: str) -> str:
    """Page with a row's line in place of its earlier one, in the order of ROWS."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    head, rule, *lines = table.splitlines()
    by_row = {existing.split("|")[1].strip(): existing for existing in lines} | {name: new_line}
    ordered = [by_row[row] for row in ROWS if row in by_row]
    return f"{before}{BEGIN}" + "".join(f"{text}\n" for text in (head, rule, *ordered)) + f"{END}{after}"


def _is_recorded(page: str, name: str, commit: str) -> bool:
    table = page.partition(BEGIN)[2].partition(END)[0]
    return any(text.startswith(f"| {name} |") and text.endswith(f", {commit} |") for text in table.splitlines())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
