"""Pytest plugin of `make test-gpu`: the outcome of each test as it ends, so that a run that is cut keeps what it has.

`-p benchmarks.gpu_report.outcomes --outcomes FILE`. Tests that have an outcome in the file are not run again.
"""

import json
from pathlib import Path

import pytest

_WORST = ("passed", "skipped", "failed")


def read_outcomes(path: Path) -> dict[str, str]:
    """Outcome by test; empty where there is no file. A line that a kill cut short counts for nothing."""
    outcomes: dict[str, str] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            outcomes[record["test"]] = record["outcome"]
        except (ValueError, KeyError, TypeError):
            continue
    return outcomes


class _Recorder:
    """Hooks that write one line per test that has ended, teardown included."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._worst: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out the tests that have an outcome."""
        ended = read_outcomes(self._path)
        left_out = [item for item in items if item.name in ended]
        items[:] = [item for item in items if item.name not in ended]
        config.hook.pytest_deselected(items=left_out)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome of a test's phases, and write it after the last."""
        name = report.nodeid.rpartition("::")[2]
        self._worst[name] = max(self._worst.get(name, "passed"), report.outcome, key=_WORST.index)
        if report.when == "teardown":
            with self._path.open("a") as file:
                # After a line that was cut short, this begins one of its own.
                file.write("\n" + json.dumps({"test": name, "outcome": self._worst[name]}) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End with 0 only where no test of this or an earlier call failed."""
        outcomes = read_outcomes(self._path)
        if outcomes and session.exitstatus in (0, 1, 5):
            session.exitstatus = int("failed" in outcomes.values())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--outcomes`."""
    parser.addoption("--outcomes", type=Path, help="file of the tests' outcomes, one line of JSON each")


def pytest_configure(config: pytest.Config) -> None:
    """Record outcomes where a file is named."""
    path = config.getoption("--outcomes")
    if path is not None:
        config.pluginmanager.register(_Recorder(path), "gpu-report-outcomes")
