"""Read the stored study that a plan names, and its times of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shardtune.service.cli.lazy_module import LazyModule

if TYPE_CHECKING:
    from shardtune.api_schemas.studies.study import Study
    from shardtune.service.cli import connection
    from shardtune.tuner.plans import resume_times
else:
    connection = LazyModule("shardtune.service.cli.connection")
    resume_times = LazyModule("shardtune.tuner.plans.resume_times")


class StudyOptions(NamedTuple):
    """Options that name a stored study, and the service or the folder in which it is stored."""

    study: str | None
    service: str | None
    key_file: Path | None
    state_dir: Path


def read_study(options: StudyOptions) -> Study | None:
    """Read the stored study that the options name; None if they name none.

    Raises:
        InputError: there is no such study.
    """
    if options.study is None:
        return None
    with connection.connect_or_start(options.service, options.state_dir, options.key_file) as client:
        return connection.find_study(client, options.study)


def load_seconds(study: Study | None) -> float:
    """Return the seconds in which a study's resume check loaded a checkpoint; 0 without such a check, since the stated
    time of a restart then includes loading."""
    times = None if study is None else resume_times.resume_times(study)
    return 0.0 if times is None else times.load_s
