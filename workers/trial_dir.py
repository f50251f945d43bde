"""Trial directory, through which the agent and the ranks of one attempt exchange files, and the removal of old trial
directories."""

import json
import logging
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shardtune.api_schemas.access import private_folder
from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.machines.hardware import Fingerprint
from shardtune.api_schemas.training.models import ModelSummary
from shardtune.api_schemas.trials.leases import Task
from shardtune.api_schemas.trials.progress import Progress
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.workers.clock import now_s
from shardtune.workers.config.allowlist import Script

_TASK: TypeAdapter[Task] = TypeAdapter(Task)
_SCRIPT = "script.json"
_OUTCOME = "outcome.json"
_FIRST_LAUNCH = "first_life"
CHECKPOINT = "checkpoint"
"""Name of the folder for a resume check's checkpoint. It is removed after each attempt, because it is the largest part
of a trial directory."""
TRACES = "traces"
"""Name of the folder for the profiler traces of the ranks, one file each."""
LOG_TAIL_CHARACTERS = 8000
_DEADLINE = "deadline"
_LONGEST_LEASE_S = 3600.0
"""Seconds ahead beyond which a deadline is no live one. Deadlines count from boot, so that one from before a restart of the
machine may lie days ahead."""


log = logging.getLogger(__name__)


class DiskFull(Exception):
    """Exception for a disk that has too little free space for a trial directory."""


@dataclass(frozen=True)
class TrialDir:
    """Folder of one attempt, with the files that agent and ranks exchange; `workers.rank` relies on the file names."""

    path: Path

    @classmethod
    def create(cls, root: Path, name: str, task: Task, fingerprint: Fingerprint, min_free_gib: float) -> "TrialDir":
        """Create an empty trial directory with the task in it.

        Raises:
            DiskFull: the disk has less than `min_free_gib` GiB free.
        """
        check_disk(root, min_free_gib)
        path = (root / name).resolve()
        if path.parent != root.resolve():
            # An existing folder is removed below, and the name comes from the service: it must not lead out of the root.
            raise ValueError(f"name ({name!r}) is no folder's within {root}")
        # The service leases the same attempt again to a worker session that lost it: old reports must not be read as
        # new ones.
        if path.exists():
            shutil.rmtree(path)
        path.mkdir()
        (path / "versions.json").write_text(fingerprint.model_dump_json(indent=2) + "\n")
        (path / "task.json").write_bytes(_TASK.dump_json(task, indent=2))
        return cls(path)

    def write_script(self, script: Script) -> None:
        """Write the command that the ranks run into the trial directory. It is always the command that the worker's
        owner has allowed, never one from the study.

        Raises:
            ValueError: the script is missing.
        """
        if not script.path.is_file():
            raise ValueError(
                f"the allowed script ({script.path}) does not exist any more; put it back, or restart the worker"
            )
        content = {"path": str(script.path), "arguments": script.arguments}
        (self.path / _SCRIPT).write_text(json.dumps(content) + "\n")

    @property
    def has_script(self) -> bool:
        """Whether the ranks run a user's script."""
        return (self.path / _SCRIPT).exists()

    def write_deadline(self, ends_s: float) -> None:
        """Write the time (on the clock of `clock.now_s`) by which ranks and fork server must have ended. If the folder
        is missing, do nothing."""
        if not self.path.is_dir():
            return
        partial = self.path / f".deadline-{threading.get_ident()}"
        try:
            partial.write_text(str(ends_s))
            partial.replace(self.path / _DEADLINE)
        except OSError as error:
            # The ranks then end early, and the run is repeated: better than ranks that outlive the lease.
            log.warning("the ranks' deadline could not be moved: %s", error)

    def progress(self) -> Progress | None:
        """Progress that rank 0 last wrote; None before the first write."""
        try:
            return Progress.model_validate_json((self.path / "progress.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def progress_stamp(self) -> int | None:
        """Modification time of the progress file, which changes whenever a rank makes progress."""
        try:
            return (self.path / "progress.json").stat().st_mtime_ns
        except OSError:
            return None

    def report(self, rank: int) -> RankReport | None:
        """Report of a rank; None if the rank wrote no readable report."""
        return _read_report(self.path / f"rank_{rank}.json")

    def first_report(self, rank: int) -> RankReport | None:
        """Report that a rank wrote in the first launch of a resume check; it is kept when the second launch begins."""
        return _read_report(self.path / _FIRST_LAUNCH / f"rank_{rank}.json")

    def begin_resume_phase(self) -> None:
        """Prepare the folder for the second launch of a resume check: rename the first launch's reports and remove its
        rendezvous file."""
        (self.path / _FIRST_LAUNCH).mkdir()
        for report in self.path.glob("rank_*.json"):
            report.rename(self.path / _FIRST_LAUNCH / report.name)
        (self.path / "store").unlink(missing_ok=True)

    def remove_checkpoint(self) -> None:
        """Remove the checkpoint of a resume check, if there is one."""
        shutil.rmtree(self.path / CHECKPOINT, ignore_errors=True)

    def reported_at(self, rank: int) -> float:
        """Modification time of a rank's report; infinite if the rank has not written one."""
        try:
            return (self.path / f"rank_{rank}.json").stat().st_mtime
        except OSError:
            return float("inf")

    def model_summary(self) -> ModelSummary | None:
        """Result of a model summary task; None if the folder has no readable one."""
        try:
            return ModelSummary.model_validate_json((self.path / "model_summary.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def rehearsal(self) -> RehearsalReport | None:
        """Result of a rehearsal (a trial on tensors without values); None if the folder has no readable one."""
        try:
            return RehearsalReport.model_validate_json((self.path / "rehearsal.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def log_tail(self, rank: int) -> str | None:
        """Last part of a rank's output, for messages to people."""
        return tail(self.path / f"rank_{rank}.log")

    def write_outcome(self, end: str) -> None:
        """Record in the trial directory how the attempt ended. An attempt without such a record counts as failed."""
        try:
            (self.path / _OUTCOME).write_text(json.dumps({"end": end}) + "\n")
        except OSError as error:
            # Such as a disk that the run itself has filled: the result, which is in memory, must still be reported.
            log.warning("the end of the attempt (%s) could not be recorded: %s", end, error)

    @property
    def is_in_use(self) -> bool:
        """Whether ranks may be running in this folder: it has no outcome, and their deadline is still to come.

        They may belong to another worker, since workers with different GPUs, and node agents of two gangs on one host,
        can share a work directory.
        """
        try:
            left_s = float((self.path / _DEADLINE).read_text()) - now_s()
        except (OSError, ValueError):
            return False
        return 0 < left_s < _LONGEST_LEASE_S and not (self.path / _OUTCOME).exists()

    @property
    def succeeded(self) -> bool:
        """Whether the attempt is recorded as complete."""
        try:
            return bool(json.loads((self.path / _OUTCOME).read_text())["end"] == "complete")
        except (OSError, ValueError, KeyError):
            return False


def _read_report(path: Path) -> RankReport | None:
    try:
        return RankReport.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def check_disk(root: Path, min_free_gib: float) -> None:
    """Create the folder for trial directories if needed, and check the free space of its disk.

    Raises:
        DiskFull: the disk has less than `min_free_gib` GiB free.
        ValueError: another user owns the folder or can write it.
    """
    private_folder.make(root, "work_dir")
    free_gib = shutil.disk_usage(root).free / GIB
    if free_gib < min_free_gib:
        raise DiskFull(
            f"work_dir ({root}) has {free_gib:.2f} GiB free, below min_free_gib ({min_free_gib}); "
            "free some space or choose another work directory"
        )


def tail(path: Path, characters: int = LOG_TAIL_CHARACTERS) -> str | None:
    """Last characters of a text file; None when the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            # A character has up to four bytes in UTF-8.
            file.seek(max(0, file.tell() - 4 * characters))
            return file.read().decode(errors="replace")[-characters:]
    except OSError:
        return None


def prune(root: Path, keep_succeeded: int, keep_failed: int) -> None:
    """Remove the oldest trial directories, except the newest `keep_succeeded` successful and `keep_failed` failed ones,
    and those in use. Also remove checkpoints that killed agents have left behind."""
    newest_first = sorted((path.parent for path in root.glob("*/task.json")), key=_changed_at, reverse=True)
    remaining = {True: keep_succeeded, False: keep_failed}
    for path in newest_first:
        if TrialDir(path).is_in_use:
            continue
        TrialDir(path).remove_checkpoint()
        succeeded = TrialDir(path).succeeded
        remaining[succeeded] -= 1
        if remaining[succeeded] < 0:
            shutil.rmtree(path, ignore_errors=True)


def _changed_at(path: Path) -> float:
    """Modification time of a folder; 0 if another worker has removed the folder meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
