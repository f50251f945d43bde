"""Follow a study of a service until it ends, and print its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.service.cli import summary
from shardtune.service.cli.errors import Interrupted, PlatformFailure
from shardtune.service.cli.signals import raise_on_signals
from shardtune.service.cli.tune import job, progress_lines
from shardtune.service.client import ServiceClient


@contextmanager
def interruptible_with(words: str) -> Iterator[None]:
    """Context manager that ends the command on Ctrl-C or SIGTERM and prints the message `words`."""
    # SIGTERM, too: a cancelled CI job must leave no study that nobody waits for.
    with raise_on_signals():
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(words) from None


def follow_study(client: ServiceClient, study_id: str, timeout_s: float | None, as_json: bool) -> None:
    """Follow a study: print its progress on stderr until it ends, then its answer on stdout."""
    # Lines, not the live table: `studies wait` mostly runs in scripts and CI.
    with progress_lines.LineView(job.print_progress) as view:

        def show_progress(study: Study) -> None:
            # The clock of an ended study stands still: it may be followed hours later.
            elapsed_s = (
                (study.finished_at or datetime.now(UTC)) - (study.started_at or study.created_at)
            ).total_seconds()
            view.show(study, client.trials(study_id), client.rejections(study_id), elapsed_s)

        try:
            study = client.wait(study_id, show_progress, timeout_s)
        except TimeoutError as error:
            raise PlatformFailure(f"{error}; the study continues") from None
    if study.result is None or study.state is StudyState.FAILED:
        raise job.error_without_result(study, client.trials(study_id))
    if as_json:
        print(json.dumps(summary.as_json(study, study.result, client.trials(study_id))))
    else:
        print(summary.as_text(study, study.result, client.trials(study_id), client.rejections(study_id)))
