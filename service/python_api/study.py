"""`Study` of the package: a study of a service, which a program creates or reads, follows and stops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_result import StudyResult
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.cli import connection, study_file
from shardtune.service.cli.errors import CliError, InputError
from shardtune.service.client import ServiceClient
from shardtune.service.python_api import arguments, measured_tables, study_words
from shardtune.service.python_api.arguments import ClusterLike, ModelLike, StudyWorkload
from shardtune.service.python_api.failures import python_errors
from shardtune.service.python_api.html import message
from shardtune.service.python_api.result import Result
from shardtune.service.python_api.rows import RowTable
from shardtune.service.python_api.service_calls import ServiceLike, open_client, service_errors
from shardtune.service.trackers.callbacks import CallbackFeed, StudyCallback


@dataclass(frozen=True, repr=False)
class StudyStatus(Result):
    """State of a study, in the table `configurations`. It contains the answer or, while there is none, the fastest
    configuration so far."""

    values: Study | None = None
    """Study as the service stores it."""


@dataclass(frozen=True, repr=False)
class StudyTrials(Result):
    """Trials of a study, in the table `trials`, and configurations that were predicted not to fit, in the table
    `rejected`."""

    values: tuple[Trial, ...] = ()
    """Trials as the service stores them, with their runs."""


@dataclass(frozen=True, repr=False)
class StudyAnswer(Result):
    """Answer of a study, in the tables `configurations`, `speedup` and `target`."""

    values: StudyResult | None = None
    """Result as the service stores it."""


class StudyHandle:
    """Study that a service stores. A notebook shows its state; used in a `with` statement, it closes its connections
    at the end."""

    def __init__(
        self,
        study_id: str = "last",
        *,
        service: ServiceLike | None = None,
        key_file: str | Path | None = None,
    ) -> None:
        """Read an existing study.

        Args:
            study_id: id of the study; `last` means the newest study that the API key can see.
            service: address or client of the service (default: `SHARDTUNE_SERVICE_URL`, or without it the default
            address of `shardtune serve`).
            key_file: file with the API key (default: `SHARDTUNE_API_KEY` or `SHARDTUNE_API_KEY_FILE`).

        Raises:
            InputError: the id is no text, there is no such study, or the service rejects the key.
            PlatformFailure: the service does not answer.
        """
        if not isinstance(study_id, str) or not study_id:
            raise InputError(f"study_id ({study_id!r}) must be the id of a study as text, or 'last'")
        self._client: ServiceClient = open_client(service, key_file)
        self._is_own_client = not isinstance(service, ServiceClient)
        with service_errors():
            self.study_id: str = connection.find_study(self._client, study_id).study_id

    @classmethod
    def create(
        cls,
        model: ModelLike,
        cluster: ClusterLike | None = None,
        *,
        study_id: str | None = None,
        service: ServiceLike | None = None,
        key_file: str | Path | None = None,
        fields: Mapping[str, Any] | None = None,
        **workload: Unpack[StudyWorkload],
    ) -> Self:
        """Create a study, which a worker of the service measures: it costs GPU-seconds, up to its budget.

        Args:
            model: preset, Hugging Face id, path, content of a `config.json`, or a study file, whose fields apply
            unless other arguments override them.
            cluster: cluster of one of the service's workers (default: the study file's, or that of the only worker).
            study_id: id of the new study (default: chosen by the service).
            service: address or client of the service (default: `SHARDTUNE_SERVICE_URL`, or without it the default
            address of `shardtune serve`).
            key_file: file with the API key (default: `SHARDTUNE_API_KEY` or `SHARDTUNE_API_KEY_FILE`).
            fields: other fields of a study file: `{"budget": {"max_trials": 20}, "baseline": {...}}`.
            workload: `sequence_length`, `global_batch` and the other fields of a study file's workload.

        Raises:
            InputError: a value is wrong, no worker has the cluster, or the service rejects the key.
            PlatformFailure: the service or the hub does not answer.
        """
        with python_errors():
            values = arguments.study_fields(model, cluster, fields or {}, workload)
            spec = study_file.validate_study(values, arguments.folder_of(model))
        client = open_client(service, key_file)
        with service_errors():
            created = client.create_study(spec, study_id)
        study = cls(created.study_id, service=client)
        study._is_own_client = not isinstance(service, ServiceClient)
        return study

    def status(self) -> StudyStatus:
        """Return the state of the study now.

        Raises:
            PlatformFailure: the service does not answer.
        """
        study = self._read()
        table = (
            measured_tables.best_so_far(study)
            if study.result is None
            else measured_tables.configurations(study.result, study.study_id)
        )
        notes = (*study.warnings, *((study.reason,) if study.reason else ()))
        return StudyStatus(study_words.state(study), (table,), study_words.subject(study), notes, study)

    def trials(self) -> StudyTrials:
        """Return the trials so far: what each measured, and why it ended early.

        Raises:
            PlatformFailure: the service does not answer.
        """
        study = self._read()
        with service_errors():
            trials = tuple(self._client.trials(self.study_id))
            rejected = self._client.rejections(self.study_id)
        tables = (
            RowTable("trials", "Trials", [measured_tables.trial_row(trial, self.study_id) for trial in trials]),
            RowTable(
                "rejected", "Predicted not to fit, and not run", list(map(measured_tables.rejected_row, rejected))
            ),
        )
        return StudyTrials(study_words.state(study), tables, study_words.subject(study), (), trials)

    def best(self) -> StudyAnswer:
        """Return the answer of a complete study, with the reasons to believe it.

        Raises:
            InputError: the study has no answer.
            PlatformFailure: the service does not answer.
        """
        study = self._read()
        with service_errors():
            result = self._client.best(self.study_id)
            trials = self._client.trials(self.study_id)
        tables = (
            measured_tables.configurations(result, self.study_id),
            measured_tables.speedup(result.speedup, self.study_id),
            measured_tables.projected(result.projection),
        )
        notes = study_words.reasons(study, result, trials)
        return StudyAnswer(study_words.answer(result), tables, study_words.subject(study), notes, result)

    def wait(
        self, timeout_s: float | None = None, *, callbacks: Sequence[StudyCallback] = (), poll_s: float = 2.0
    ) -> StudyStatus:
        """Follow the study until it ends, and return its last state. Ctrl-C stops only the waiting; the study
        continues.

        Args:
            timeout_s: seconds to wait (default: no limit).
            callbacks: objects that receive each ended trial and the answer, such as `MlflowCallback()`. An exception
            of a callback ends the waiting, not the study.
            poll_s: seconds between two requests.

        Raises:
            TimeoutError: the study had not ended in time; it continues.
            PlatformFailure: the service did not answer for a minute.
        """
        feed = CallbackFeed(callbacks)

        def follow(study: Study) -> None:
            if callbacks:
                feed.send(study, self._client.trials(self.study_id))

        with service_errors():
            self._client.wait(self.study_id, follow, timeout_s, poll_s)
        return self.status()

    def stop(self) -> StudyStatus:
        """Cancel the study for good, and return its state. Measurements are kept.

        Raises:
            InputError: the study has ended, or the key may not cancel it.
            PlatformFailure: the service does not answer.
        """
        with service_errors():
            self._client.cancel(self.study_id)
        return self.status()

    def close(self) -> None:
        """Close the connections to the service, unless they belong to a client that the caller has passed. The study
        continues."""
        if self._is_own_client:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Study({self.study_id!r}, service={self._client.base_url!r})"

    def _repr_html_(self) -> str:
        try:
            return self.status()._repr_html_()
        except CliError as error:
            # A cell that only names the study must not fail because the service is away.
            return message(repr(self), str(error))

    def _read(self) -> Study:
        with service_errors():
            return self._client.study(self.study_id)
