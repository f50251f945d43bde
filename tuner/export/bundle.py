"""Files of one export: content by file name."""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shardtune.api_schemas.studies.exports import Export, ExportFormat
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import Contender
from shardtune.tuner.export import accelerate, environment, launch, lightning, sample_lengths, snippet, torchtitan
from shardtune.tuner.export.backends.registry import BACKENDS
from shardtune.tuner.export.launchers import dstack, ray_job, skypilot, trainjob
from shardtune.tuner.export.precision import loss_scale
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.tools import axolotl, llama_factory, ms_swift
from shardtune.tuner.export.trainer import training_arguments, trl
from shardtune.tuner.export.trial_rendering import Rendered

RENDERERS = {
    "training-arguments": training_arguments.render,
    "torchtitan": torchtitan.render,
    "lightning": lightning.render,
    "trl": trl.render,
    "axolotl": axolotl.render,
    "llama-factory": llama_factory.render,
    "ms-swift": ms_swift.render,
}
"""Function that renders the exported files, for each export format of a training program (such as `torchtitan`)."""


class LauncherExport(NamedTuple):
    """Export for a launcher, which is a program that starts the standard files on machines."""

    file: str
    """Name of the file that the launcher reads."""
    render: Callable[[ExportSource, Mapping[str, str]], Rendered]
    """Function that renders the file from the standard files."""


LAUNCHERS: Mapping[str, LauncherExport] = {
    "skypilot": LauncherExport(skypilot.FILE, skypilot.render),
    "dstack": LauncherExport(dstack.FILE, dstack.render),
    "trainjob": LauncherExport(trainjob.FILE, trainjob.render),
    "ray": LauncherExport(ray_job.FILE, ray_job.render),
}
"""Exports for launchers, by export format."""


def export(study: Study, contender: Contender, form: ExportFormat) -> Export:
    """Export a measured configuration in one format: its files, with the model's `config.json` beside them, and the
    settings that the files cannot express.

    Raises:
        ValueError: the study has measured nothing yet, or the program that the files are for lacks the backend.
    """
    source = ExportSource.of(study, contender)
    if form == "standard":
        return Export(format=form, files=files(study, contender), lossy=_lost_by_standard_files(source))
    lost_beside: tuple[str, ...] = ()
    if form in LAUNCHERS:
        lost_beside = _lost_by_accelerate(source)
        beside = {name: text for name, text in files(study, contender).items() if name != "launch.sbatch"}
        rendered = LAUNCHERS[form].render(source, beside)
    else:
        loss_scale.check_format(source, form)
        beside = {"config.json": _task_json(source)}
        rendered = RENDERERS[form](source)
    return Export(
        format=form,
        files=beside | rendered.files,
        release=rendered.release,
        lossy=(*rendered.lossy, *lost_beside),
        lossy_config=rendered.lossy_config if rendered.lossy_config != source.config else None,
    )


def _lost_by_standard_files(source: ExportSource) -> tuple[str, ...]:
    """Settings that a file of the standard export cannot express. Only `launch.sh` sets the environment, and there is
    none for a user's own code."""
    is_own = source.study.spec.model.is_own
    unset = environment.notes(source) if is_own else environment.unset_notes(source)
    return (*(() if is_own else sample_lengths.snippet_notes(source)), *unset, *_lost_by_accelerate(source))


def _lost_by_accelerate(source: ExportSource) -> tuple[str, ...]:
    return tuple(f"accelerate.yaml: {line}" for line in accelerate.lost(source))


def files(study: Study, contender: Contender) -> dict[str, str]:
    """Export a measured configuration as ready-to-use files: content by relative file name.

    `config.json` and `accelerate.yaml` are always among them. ZeRO adds `ds_config.json`; a model of transformers adds
    `launch.sh` and `train_snippet.py`, and on several nodes `launch.sbatch`.

    Raises:
        ValueError: the study has measured nothing yet.
    """
    source = ExportSource.of(study, contender)
    contents = {
        "config.json": _task_json(source),
        "accelerate.yaml": accelerate.document(source),
    }
    if not study.spec.model.is_own:
        # A user's own code has its own script and its own way to start it.
        contents |= {"launch.sh": launch.script(source), "train_snippet.py": snippet.source(source)}
        if source.cluster.nodes > 1:
            contents["launch.sbatch"] = launch.batch_script(source)
    return contents | BACKENDS[source.config.backend].files(source, source.config.strategy)


def _task_json(source: ExportSource) -> str:
    return json.dumps(source.task().model_dump(mode="json"), indent=2) + "\n"
