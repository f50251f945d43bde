"""How `shardtune tune` ends: the files of the answer on disk, what was found, and how to use it or to go on."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from shardtune.api_schemas.studies.study import MOST_PAIRS, Study, StudyResult
from shardtune.service.cli import summary
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.cli.write_files import write_files
from shardtune.service.client import ServiceClient

MORE_PAIRS = 6
"""That an undecided study is offered at least: where one is lost, what would just have done does not do."""


def give(client: ServiceClient, study: Study, options: TuneOptions) -> None:
    """Write the files and print the answer, and the command that would settle an undecided one."""
    assert study.result is not None
    paths, trials = write_files(options.out, client.export(study.study_id).files), client.trials(study.study_id)
    if options.as_json:
        print(json.dumps(summary.as_json(study, study.result, trials, paths)))
        return
    how = _how(options.out, paths)
    print(summary.as_text(study, study.result, trials, client.rejections(study.study_id), paths, how))
    if (said := what_settles(study, study.result, options)) is not None:
        print(f"{'settle it':<12}{said}")


def what_settles(study: Study, result: StudyResult, options: TuneOptions) -> str | None:
    """The command to type next, with why; None where nothing is undecided."""
    if result.undecided is None:
        return None
    needed, room = result.undecided.more_pairs, MOST_PAIRS - study.spec.budget.max_pairs
    if needed is None or needed > room:
        # A study that another command made is run again by that command: its file is gone.
        command = options.from_the_start() if options.study_id is None else "the same command"
        return f"run it again while nothing else uses this machine, so that pairs vary less: {command}"
    pairs = min(max(needed, MORE_PAIRS), room)
    command = options.again("--add-pairs", str(pairs))
    # The final comparison ends with the pair that confirms, so that room for a lost one costs nothing.
    return command if pairs == needed else f"{needed} more, and room for lost ones, unused if all go well: {command}"


def _how(out: Path, paths: Sequence[str]) -> str:
    """The launch line, with our interpreter where another one would be found first; none for a script of the user's."""
    if not any(path.endswith("launch.sh") for path in paths):
        return ""
    found = shutil.which("python")
    ours = found is not None and Path(found).parent == Path(sys.executable).parent
    script = str(Path(os.path.relpath(out)) / "launch.sh")
    return f"{script} --steps 10" if ours else f"PYTHON={sys.executable} {script} --steps 10"
