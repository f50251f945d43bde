"""Write the files of an export."""

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from shardtune.service.cli.errors import InputError
from shardtune.tuner.export import bundle, launch

EXPORTED = (
    *("config.json", "launch.sh", "launch.sbatch", "accelerate.yaml", "train_snippet.py", "ds_config.json"),
    *(".deepspeed_env", "changes.md"),
    *(launcher.file for launcher in bundle.LAUNCHERS.values()),
)
"""Names of the files that an export writes. Files with these names from an earlier export are removed if the new
export lacks them."""
TARGET_FOLDER, _SIZES_FILE = "target", "sizes.json"
_CONFIRM_JOB = "confirm.sbatch"
_TARGET_FILES = (_SIZES_FILE, "confirm.json", _CONFIRM_JOB)
"""Names of the further files that an export for a study's target (a larger cluster) writes. In folders other than the
target's, files with these names belong to the user."""

_NO_STATE = "\nstate=\n"
"""Line of `confirm.sbatch` (the job that confirms an answer on its target) that leaves the state directory empty. The
service writes it so, because it does not know the directory."""


def runnable_here(contents: Mapping[str, str]) -> dict[str, str]:
    """Return an export's files, with a `launch.sh` that can fall back to this Python interpreter, which measured the
    configuration."""
    return {
        name: launch.with_fallback(text, sys.executable) if name == "launch.sh" else text
        for name, text in contents.items()
    }


def reporting_here(contents: Mapping[str, str], state_dir: Path) -> dict[str, str]:
    """Return an export's files, with a `confirm.sbatch` (the job that confirms an answer on its target) that can fall
    back to this Python interpreter. The job reports to the study in the given state directory."""
    files = dict(contents)
    if _CONFIRM_JOB in files:
        job = launch.with_fallback(files[_CONFIRM_JOB], sys.executable, "shardtune")
        files[_CONFIRM_JOB] = job.replace(_NO_STATE, f"\nstate={shlex.quote(str(state_dir.resolve()))}\n", 1)
    return files


def write_files(folder: Path, contents: Mapping[str, str]) -> list[str]:
    """Write the files of an export and return their paths relative to the working directory.

    Raises:
        InputError: the folder cannot be written.
    """
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in {*EXPORTED, *_target_files_of(folder, contents)} - set(contents):
            (folder / stale).unlink(missing_ok=True)
        for name, text in contents.items():
            if Path(name).name != name:
                # The names come from a service that we may not trust: `../../.bashrc` must not be written.
                raise InputError(
                    f"the service returned a file name ({name!r}) outside of {folder}; no further file was written"
                )
            path = folder / name
            # The path of a state directory may have bytes that are no UTF-8, which the job needs as they are.
            path.write_text(text, encoding="utf-8", errors="surrogateescape")
            if name.endswith(".sh"):
                path.chmod(0o755)
            paths.append(os.path.relpath(path))
    except OSError as error:
        raise InputError(f"--out ({folder}) cannot be written: {error.strerror}; choose another directory") from None
    return paths


def _target_files_of(folder: Path, contents: Mapping[str, str]) -> tuple[str, ...]:
    return _TARGET_FILES if _SIZES_FILE in contents and folder.name == TARGET_FOLDER else ()


def remove_target_files(folder: Path) -> None:
    """Remove the files of an earlier export for a target, so that they are not mistaken for files of the new answer.

    Raises:
        InputError: the folder cannot be written.
    """
    # Every export for a target has this file. Without it, the folder is the user's own.
    if not (folder / _SIZES_FILE).is_file():
        return
    try:
        for name in (*EXPORTED, *_TARGET_FILES):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"--out ({folder}) cannot be written: {error.strerror}; choose another directory") from None
    # What the user put there, and what the confirming job found, stays.
    with contextlib.suppress(OSError):
        folder.rmdir()
