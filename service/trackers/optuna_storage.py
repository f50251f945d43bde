"""Write a study's trials into an Optuna storage, which optuna-dashboard and Optuna's own analyses open."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.training.search_space import KnobValue
from shardtune.api_schemas.trials.trial import Trial, TrialState
from shardtune.service.trackers import storage_lock, trial_values

_TRIAL, _STUDY, _VALUE = "shardtune.trial", "shardtune.study_id", "shardtune.value"
_STATES = {TrialState.COMPLETE: OptunaState.COMPLETE, TrialState.PRUNED: OptunaState.PRUNED}
_OWN_TABLE = "version_info"
"""Table by which a database is recognised as an Optuna storage, because each one contains it."""


class StorageRejected(ValueError):
    """Error: the Optuna storage cannot be written; the message names the storage without its password, the reason and
    the remedy.
    """


@dataclass(frozen=True)
class StorageUpdate:
    """Result of a writing."""

    name: str
    """Name that the study has in the Optuna storage."""
    added: int
    """Number of trials that were added to the Optuna storage."""
    kept: int
    """Number of the study's trials that the Optuna storage contained before."""
    waiting: int
    """Number of the study's trials that have not ended, so that they are not yet written to the Optuna storage."""


def write_study(study: Study, trials: Sequence[Trial], storage: str, name: str | None = None) -> StorageUpdate:
    """Write the ended trials of a study into an Optuna storage. Trials that the storage already contains are kept.

    `storage`: address of a database in SQLAlchemy's form, such as `sqlite:///trials.db`; `name`: name of the study in
    the storage (default: its id).

    Raises:
        StorageRejected: the storage cannot be written, or has a study of this name that is not Shardtune's.
    """
    # Optuna prints a line for each study that it opens.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = name or study.study_id
    ended = [trial for trial in trials if not trial.state.is_open]
    with _rejections(storage) as url, storage_lock.locked_file(url):
        _check_tables(storage)
        backend = optuna.storages.RDBStorage(storage)
        try:
            with storage_lock.locked_row(url):
                added, kept = _write(backend, name, study, ended)
        finally:
            backend.remove_session()
            backend.engine.dispose()
    return StorageUpdate(name, added, kept, len(trials) - len(ended))


def _write(backend: optuna.storages.RDBStorage, name: str, study: Study, ended: Sequence[Trial]) -> tuple[int, int]:
    """Write ended trials into an Optuna storage, while no other program writes to it. Returns how many trials were
    added and how many it already contained.
    """
    stored = _stored_study(backend, name, study.study_id)
    wanted = _by_number(_optuna_trials(ended))
    trials = [] if stored is None else stored.get_trials(deepcopy=False)
    kept = _by_number(trials)
    attributes = {} if stored is None else stored.user_attrs
    if len(trials) > len(kept) or any(
        number not in wanted or _content(trial) != _content(wanted[number]) for number, trial in kept.items()
    ):
        # Ended trials of Optuna cannot be changed, nor the choices of their parameters, and none can be removed.
        optuna.delete_study(study_name=name, storage=backend)
        stored, kept = None, {}
    target = stored or optuna.create_study(storage=backend, study_name=name, direction="maximize")
    # Those that people set outlast a study that is written anew.
    own = {_STUDY: study.study_id, _VALUE: "tokens per second and GPU, measured", **trial_values.study_notes(study)}
    for key, value in (attributes | own).items():
        target.set_user_attr(key, value)
    target.add_trials([trial for number, trial in wanted.items() if number not in kept])
    return len(wanted) - len(kept), len(kept)


def _stored_study(backend: optuna.storages.RDBStorage, name: str, study_id: str) -> optuna.Study | None:
    """Return the Optuna study of this name in the storage; None if there is none.

    Raises:
        StorageRejected: the stored study belongs to another study or program, or contains trials that Shardtune did not
            write.
    """
    if name not in optuna.get_all_study_names(backend):
        return None
    stored = optuna.load_study(study_name=name, storage=backend)
    if stored.user_attrs.get(_STUDY) != study_id:
        raise StorageRejected(f"name ({name!r}) is another study's in this storage; give a free one with --name")
    if any(_TRIAL not in trial.user_attrs for trial in stored.get_trials(deepcopy=False)):
        raise StorageRejected(
            f"name ({name!r}) has trials in this storage that were not written by Shardtune; give a free one with --name"
        )
    return stored


def _optuna_trials(trials: Sequence[Trial]) -> list[FrozenTrial]:
    rows = [trial_values.parameters(trial) for trial in trials]
    columns = {
        name: [row[name] for row in rows if name in row] for name in dict.fromkeys(k for row in rows for k in row)
    }
    spaces = {name: _distribution(values) for name, values in columns.items()}
    return [_optuna_trial(trial, row, spaces) for trial, row in zip(trials, rows, strict=True)]


def _optuna_trial(trial: Trial, row: dict[str, KnobValue], spaces: dict[str, BaseDistribution]) -> FrozenTrial:
    state, speed = _STATES.get(trial.state, OptunaState.FAIL), trial.tokens_per_s_per_gpu
    times = trial_values.ran_between(trial)
    start, end = (_local(moment) for moment in times) if times is not None else (datetime.now(), datetime.now())
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=speed if state is OptunaState.COMPLETE else None,
        datetime_start=start,
        datetime_complete=end,
        params=dict(row),
        distributions={name: spaces[name] for name in row},
        user_attrs={_TRIAL: trial.number, **trial_values.figures(trial), **trial_values.notes(trial)},
        system_attrs={},
        # The speed of a pruned trial is known roughly.
        intermediate_values={0: speed} if state is OptunaState.PRUNED and speed is not None else {},
    )


def _local(moment: datetime) -> datetime:
    """Convert a time into the form in which Optuna stores it: local time without a time zone."""
    return moment.astimezone().replace(tzinfo=None)


def _distribution(values: Sequence[KnobValue]) -> BaseDistribution:
    if all(type(value) is int for value in values):
        numbers = [value for value in values if isinstance(value, int)]
        return IntDistribution(min(numbers), max(numbers))
    if all(isinstance(value, bool) for value in values):
        return CategoricalDistribution([False, True])
    return CategoricalDistribution(sorted(set(values), key=str))


def _by_number(trials: Sequence[FrozenTrial]) -> dict[int, FrozenTrial]:
    return {trial.user_attrs[_TRIAL]: trial for trial in trials}


def _content(trial: FrozenTrial) -> tuple[object, ...]:
    """Return the part of a stored trial that must be the same when the trial is written again."""
    choices = {
        name: space.choices for name, space in trial.distributions.items() if isinstance(space, CategoricalDistribution)
    }
    return trial.state, trial.values, trial.params, choices, trial.user_attrs


def _check_tables(storage: str) -> None:
    """Reject a database that belongs to another program, because Optuna would create its tables in it.

    Raises:
        StorageRejected: the database has tables, but is no Optuna storage.
    """
    engine = sqlalchemy.create_engine(storage)
    try:
        tables = sqlalchemy.inspect(engine).get_table_names()
    finally:
        engine.dispose()
    if tables and _OWN_TABLE not in tables:
        raise StorageRejected(f"it is the database of another program, with tables such as {tables[0]}; name another")


@contextmanager
def _rejections(storage: str) -> Iterator[sqlalchemy.URL]:
    """Parse the address of an Optuna storage, and convert every expected error of the `with` block into a
    `StorageRejected`.
    """
    try:
        url = sqlalchemy.make_url(storage)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise StorageRejected(
            "storage (not shown) is no address of a database; write it like sqlite:///trials.db"
        ) from None
    # Without the query, which may hold a password, too.
    shown = url.set(query={}).render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and (url.database in (None, "") or ":memory:" in str(url.database)):
        raise StorageRejected(
            f"storage ({shown}) names no file, and would keep nothing; write it like sqlite:///trials.db"
        )
    try:
        yield url
    except StorageRejected as error:
        raise StorageRejected(f"storage ({shown}): {error}") from None
    except ModuleNotFoundError as error:
        raise StorageRejected(f"storage ({shown}) needs the package {error.name}, which is not installed") from None
    except storage_lock.StorageBusy as error:
        raise StorageRejected(f"storage ({shown}) is busy: {error}") from None
    except (OSError, sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        raise StorageRejected(f"storage ({shown}) cannot be written: {_reason(error)}; correct it") from None


def _reason(error: BaseException) -> str:
    """Return the error message of the database itself, on one line, because Optuna replaces it by a guess of its own."""
    inner = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
    words = inner.orig if isinstance(inner, sqlalchemy.exc.DBAPIError) else inner
    return str(words).strip().partition("\n")[0]
