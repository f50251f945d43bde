"""Write the files of the recommended configuration, and print the answer and the next command of `shardtune tune`."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from shardtune.api_schemas.studies.exports import FineTuningFormat
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.service.cli import summary
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import continuation
from shardtune.service.cli.tune.options import DEFAULT_STATE_DIR, TuneOptions
from shardtune.service.cli.tune.quiet_options import DEFAULT_WAIT_MINUTES
from shardtune.service.cli.write_files import (
    TARGET_FOLDER,
    remove_target_files,
    reporting_here,
    runnable_here,
    write_files,
)
from shardtune.service.client import ServiceClient, ServiceError
from shardtune.service.process.own_command import as_called, command_words
from shardtune.service.wording.answers.verdict_line import verdict_text
from shardtune.service.wording.more_pairs import more_pairs

_TOOLS: tuple[FineTuningFormat, ...] = get_args(FineTuningFormat)


def write_and_print(client: ServiceClient, study: Study, options: TuneOptions) -> None:
    """Write the recommended configuration's files and print the answer, with the next command if the answer is
    undecided. With `--json`, stdout holds one object; the verdict, the folder of the files and the command go to
    stderr."""
    assert study.result is not None
    (paths, problem), trials = write_all_files(client, study, options), client.trials(study.study_id)
    # A program reads the object on stdout; the person who started it reads the rest.
    remarks = sys.stderr if options.as_json else sys.stdout
    if options.as_json:
        print(json.dumps(summary.as_json(study, study.result, trials, paths)))
        print(f"{'verdict':<12}{verdict_text(study.result)}", file=remarks)
        print(f"{'files':<12}{_files_in_folder(options.out, paths)}", file=remarks)
    else:
        launch_line = _launch_line(options.out, paths)
        text = summary.as_text(study, study.result, trials, client.rejections(study.study_id), paths, launch_line)
        print(as_called(text))
        if (export := export_command(study, options)) is not None:
            print(f"{'for tools':<12}{export}")
    if problem:
        print(problem, file=remarks)
    is_open = study.result.undecided is not None or study.result.too_busy is not None
    if is_open and options.study is None:
        # The study's own file is not known here: `--resume` and `--add-pairs` read the stored study.
        options = replace(options, study=continuation.write_study(study, options.state_dir))
    if (command := next_command(study, study.result, options)) is not None:
        print(f"{'to decide':<12}{command}", file=remarks)


def write_all_files(client: ServiceClient, study: Study, options: TuneOptions) -> tuple[list[str], str]:
    """Write the files of a study's answer, and the files for its target (the larger cluster that the answer is
    projected to).

    Returns:
        Paths of the files, and a line that says why the files for the target are missing; the line is empty if they
        were written.
    """
    paths = write_files(options.out, runnable_here(client.export(study.study_id).files))
    try:
        return paths + _write_target(client, study, options), ""
    except (ServiceError, InputError) as error:
        # The measured answer is complete, and must not be lost for the files of another cluster.
        return paths, f"{'target':<12}the files for the target are not written: {error}"


def _write_target(client: ServiceClient, study: Study, options: TuneOptions) -> list[str]:
    """Write the files for the study's target (the larger cluster that the answer is projected to), or remove the
    target files of an earlier study; return the written paths.

    The target's files are in a separate folder: they are for more GPUs than this machine has, and no run has confirmed
    them.
    """
    assert study.result is not None
    folder = options.out / TARGET_FOLDER
    if study.result.projection is not None:
        return write_files(folder, reporting_here(client.export(study.study_id, "target").files, options.state_dir))
    remove_target_files(folder)
    return []


def export_command(study: Study, options: TuneOptions) -> str | None:
    """Return the command that writes the answer as a file for a fine-tuning tool; None for a study that trains all
    weights."""
    if study.spec.workload.adapter is None:
        return None
    words = [*command_words(), "export", "last", "--format", _TOOLS[0], "--out", _TOOLS[0]]
    words += ["--state-dir", str(options.state_dir)] if options.state_dir != DEFAULT_STATE_DIR else []
    return f"{shlex.join(words)} (or {', '.join(_TOOLS[1:])})"


def next_command(study: Study, result: StudyResult, options: TuneOptions) -> str | None:
    """Return the command that may decide a study which is undecided, or whose machine was too busy; None for a decided
    study. Also None for a study on one of the smaller clusters of `--rungs`, because its speeds are used for
    projections whatever its verdict."""
    if options.rung is not None:
        return None
    if result.too_busy is not None:
        return _after_too_busy(study, result, options)
    if result.undecided is None:
        return None
    more = more_pairs(study, result)
    if more is None:
        # `explain --try` runs studies from a temporary file: only that command can run one again.
        command = options.from_the_start() if options.study_id is None else "the same command"
        if result.undecided.is_extension_off:
            return (
                f'run it again with "short_steps": false in the budget, so that each run times whole steps: {command}'
            )
        if not result.undecided.disturbed_counted_runs:
            # Without a baseline of the user's, the faster of the two is recommended, which may be the candidate.
            is_kept = result.best.trial_number == result.baseline.trial_number
            kept = "keep the baseline" if is_kept else "either will do"
            return f"{kept}; to try once more, run it again: {command}"
        return f"run it again while nothing else uses this machine, so that pairs vary less: {command}"
    command = options.again("--add-pairs", str(more.pairs))
    return command if more.pairs == more.needed else f"{command} (ends as soon as the pairs decide)"


def _after_too_busy(study: Study, result: StudyResult, options: TuneOptions) -> str:
    """Return the command that repeats the disturbed runs of a study, and waits for a quiet machine before each run."""
    more, minutes = more_pairs(study, result), options.wait_for_quiet_min or DEFAULT_WAIT_MINUTES
    waiting = replace(options, wait_for_quiet_min=minutes)
    if more is not None:
        command = options.again("--add-pairs", str(more.pairs), *waiting.wait_words())
    elif options.study_id is None:
        command = waiting.from_the_start()
    else:
        command = f"the same command with {shlex.join(waiting.wait_words())}"
    return f"{command} (waits for a quiet machine, {minutes:g} minutes in all; then it runs even if busy)"


def _files_in_folder(out: Path, paths: Sequence[str]) -> str:
    """Return the folder of the written files and their names in it: `best (config.json, launch.sh)`."""
    return f"{out} ({', '.join(os.path.relpath(path, out) for path in paths)})"


def _launch_line(out: Path, paths: Sequence[str]) -> str:
    """Return the command that starts the training; empty for the user's own script, which has no launch file."""
    if not any(path.endswith("launch.sh") for path in paths):
        return ""
    return f"{Path(os.path.relpath(out)) / 'launch.sh'} --steps 10"
