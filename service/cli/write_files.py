"""Write the files of an export."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from shardtune.service.cli.errors import InputError
from shardtune.tuner.export import launch

EXPORTED = (
    *("config.json", "launch.sh", "launch.sbatch", "accelerate.yaml", "train_snippet.py", "ds_config.json"),
    *(".deepspeed_env", "changes.md", "skypilot.yaml", "train.dstack.yml", "trainjob.yaml", "ray_job.py"),
    *("sizes.json", "confirm.json", "confirm.sbatch"),
)
"""All file names of exports; files of an earlier export that the new one lacks are removed."""


def runnable_here(contents: Mapping[str, str]) -> dict[str, str]:
    """Return the files with a launch script that finds this interpreter, whose worker measured the configuration."""
    return {
        name: launch.with_fallback(text, sys.executable) if name == "launch.sh" else text
        for name, text in contents.items()
    }


def write_files(folder: Path, contents: Mapping[str, str]) -> list[str]:
    """Write the files and return their paths relative to the working directory.

    Raises:
        InputError: the folder cannot be written.
    """
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in set(EXPORTED) - set(contents):
            (folder / stale).unlink(missing_ok=True)
        for name, text in contents.items():
            if Path(name).name != name:
                # The names come from a service that we may not trust: `../../.bashrc` must not be written.
                raise InputError(
                    f"the service returned a file name ({name!r}) outside of {folder}; no further file was written"
                )
            path = folder / name
            path.write_text(text, encoding="utf-8")
            if name.endswith(".sh"):
                path.chmod(0o755)
            paths.append(os.path.relpath(path))
    except OSError as error:
        raise InputError(f"--out ({folder}) cannot be written: {error.strerror}; choose another directory") from None
    return paths
