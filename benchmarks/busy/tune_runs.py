"""Runs of `shardtune tune` beside foreign load, each in a state directory of its own, as a new user would run it."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.busy.foreign_load import Kind, foreign_load
from benchmarks.busy.rows import StudyRows, read_rows
from shardtune.service.cli.local_stack import DATABASE_FILE
from shardtune.service.cli.parent_death import dies_with_parent

_PATIENCE_S = 30.0
"""Seconds that an interrupted command has to stop its ranks, before the kernel ends it."""


@dataclass(frozen=True)
class Plan:
    """Plan of the runs."""

    folder: Path
    """Folder of the answers and databases; a run that it holds does not run again."""
    repository: Path
    """Checkout of the product whose command runs."""
    minutes: float
    """Minutes after which a command is ended."""


@dataclass(frozen=True)
class TuneRun:
    """One run of the command."""

    load: float
    number: int
    kind: Kind
    """Kind of the foreign load."""
    answer: dict[str, Any] | None
    """Object that the command printed; None where it ended without an answer."""
    rows: StudyRows | None
    error: str = ""
    """Last line of the command's errors, where there is no answer."""


def tune_beside(plan: Plan, load: float, number: int) -> TuneRun:
    """Run the command beside so many cores of foreign load, or read a run that the folder holds. Runs with an odd
    number have a steady load, the others bursts."""
    kind: Kind = "steady" if number % 2 else "bursts"
    folder = plan.folder / f"load-{load:g}-run-{number}"
    answer_file, error_file = folder / "answer.json", folder / "errors.txt"
    if not answer_file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with foreign_load(load, kind):
            stdout, stderr = _tune(plan, folder)
        error_file.write_text(stderr)
        # Written last: an interrupted run is run again.
        answer_file.write_text(stdout)
    text = answer_file.read_text().strip()
    if not text:
        errors = error_file.read_text().strip().splitlines() or ["no answer and no error"]
        return TuneRun(load, number, kind, None, None, errors[-1])
    answer = json.loads(text)
    return TuneRun(load, number, kind, answer, read_rows(folder / "state" / DATABASE_FILE, answer["study_id"]))


def _tune(plan: Plan, folder: Path) -> tuple[str, str]:
    """Outputs of the command; no output where it took too long."""
    code = "import sys; from shardtune.service.cli import main; sys.exit(main())"
    study = plan.repository / "examples" / "llama-tiny.json"
    # A state directory that an interrupted run left would be continued or refused.
    state = _unused(folder / "state")
    command = [sys.executable, "-P", "-c", code, "tune", str(study), "--json", "--state-dir", str(state)]
    environment = {**os.environ, "PYTHONPATH": str(plan.repository), "NO_COLOR": "1"}
    process = subprocess.Popen(
        dies_with_parent([*command, "--out", str(folder / "best")]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=60 * plan.minutes)
    except subprocess.TimeoutExpired:
        return "", f"{_stop(process)}\nended by the benchmark after {plan.minutes:g} minutes"
    finally:
        if process.poll() is None:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> str:
    """Interrupt the command, which stops its service and ranks; returns its errors."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=_PATIENCE_S)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


def _unused(path: Path) -> Path:
    """Move what an interrupted run left at this path out of the way."""
    if path.exists():
        count = sum(other.name.startswith(f"{path.name}.") for other in path.parent.iterdir())
        path.rename(path.with_name(f"{path.name}.{count}"))
    return path
