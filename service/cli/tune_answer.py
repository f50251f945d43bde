"""How `shardtune tune` ends: the files of the answer on disk, what was found, and how to use it or to go on."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from shardtune.api_schemas.studies import Study, StudyResult
from shardtune.service.cli import summary
from shardtune.service.cli.write_files import write_files
from shardtune.service.client import ServiceClient

MORE_PAIRS = 6
"""That an undecided study is offered at least: some more than would do if every pair goes as those so far."""


def give(client: ServiceClient, study: Study, out: Path, as_json: bool, state_flag: str) -> None:
    """Write the files and print the answer. `state_flag`: what names the state directory on a command line."""
    assert study.result is not None
    paths, trials = write_files(out, client.export(study.study_id).files), client.trials(study.study_id)
    if as_json:
        print(json.dumps(summary.as_json(study, study.result, trials, paths)))
        return
    print(summary.as_text(study, study.result, trials, client.rejections(study.study_id), paths, _how(out, paths)))
    if (pairs := _more_pairs(study.result)) is not None:
        print(f"{'settle it':<12}shardtune tune --add-pairs {pairs}{state_flag}")


def _more_pairs(result: StudyResult) -> int | None:
    needed = result.undecided.more_pairs if result.undecided is not None else None
    return None if needed is None else max(needed, MORE_PAIRS)


def _how(out: Path, paths: Sequence[str]) -> str:
    """The launch line, with our interpreter where another one would be found first; none for a script of the user's."""
    if not any(path.endswith("launch.sh") for path in paths):
        return ""
    found = shutil.which("python")
    ours = found is not None and Path(found).parent == Path(sys.executable).parent
    script = str(Path(os.path.relpath(out)) / "launch.sh")
    return f"{script} --steps 10" if ours else f"PYTHON={sys.executable} {script} --steps 10"
