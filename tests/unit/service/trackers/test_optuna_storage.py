"""A study's trials in an Optuna storage, read with Optuna."""

import functools
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from filelock import FileLock
from optuna.trial import TrialState as OptunaState

from shardtune.api_schemas.trials.trial import TrialState
from shardtune.service.trackers import storage_lock
from shardtune.service.trackers.optuna_storage import StorageRejected, write_study
from tests.support.values.tracked_study import BEGIN, TRIALS, study, trial

OPEN = trial(3, TrialState.RUNNING, {"strategy": {"kind": "ddp"}, "micro_batch": 2})


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path / 'trials.db'}"


@functools.cache
def opened(storage):
    """Open a storage as Optuna does by its address: it compares tables and revisions, which need be done once."""
    return optuna.storages.RDBStorage(storage)


def stored(storage, name="study-1"):
    return optuna.load_study(study_name=name, storage=opened(storage))


def test_each_ended_trial_has_its_knobs_its_speed_and_its_reason(storage):
    written = write_study(study(), (*TRIALS, OPEN), storage)
    assert (written.name, written.added, written.kept, written.waiting) == ("study-1", 3, 0, 1)
    complete, infeasible, pruned = stored(storage).trials
    assert [t.state for t in stored(storage).trials] == [OptunaState.COMPLETE, OptunaState.FAIL, OptunaState.PRUNED]
    assert complete.value == 1000.0 and complete.params["backend"] == "ddp" and complete.params["micro_batch"] == 1
    assert complete.user_attrs["measured_peak_memory_gib"] == 1.5 and "shardtune.trial" in complete.user_attrs
    assert infeasible.user_attrs["state"] == "infeasible"
    assert infeasible.user_attrs["failure"] == "oom: out of memory: tried to allocate 2 GiB"
    assert infeasible.params["dp_shard"] == 2 and "dp_shard" not in complete.params
    assert pruned.intermediate_values == {0: 400.0} and pruned.params["micro_batch"] == 4
    assert (complete.datetime_start.timestamp(), complete.duration.total_seconds()) == (BEGIN.timestamp(), 60)
    assert stored(storage).best_trial.number == 0 and stored(storage).user_attrs["model"] == "llama-tiny"


def test_a_second_writing_adds_only_what_is_new(storage):
    write_study(study(), TRIALS[:2], storage)
    assert write_study(study(), TRIALS[:2], storage).added == 0 and len(stored(storage).trials) == 2
    late = (
        TRIALS[0],
        trial(4, TrialState.COMPLETE, {"strategy": {"kind": "ddp"}}, tokens_per_s_per_gpu=7.0),
        TRIALS[1],
    )
    assert (write_study(study(), late, storage).added, len(stored(storage).trials)) == (1, 3)
    assert sorted(t.user_attrs["shardtune.trial"] for t in stored(storage).trials) == [0, 1, 4]


SIX = [
    trial(i, TrialState.COMPLETE, {"strategy": {"kind": "ddp"}, "micro_batch": 1}, tokens_per_s_per_gpu=10.0 + i)
    for i in range(6)
]


def written_at_once(storage):
    """Numbers of the stored trials after four writers at once."""
    with ThreadPoolExecutor(4) as pool:
        updates = list(pool.map(lambda _: write_study(study(), SIX, storage), range(4)))
    assert sorted(update.added for update in updates) == [0, 0, 0, 5]
    return [t.user_attrs["shardtune.trial"] for t in stored(storage).trials]


def test_two_writers_at_once_double_no_trial(storage, tmp_path):
    write_study(study(), SIX[:1], storage)
    assert written_at_once(storage) == [0, 1, 2, 3, 4, 5]
    (tmp_path / "link.db").symlink_to(tmp_path / "trials.db")
    with FileLock(tmp_path / "trials.db.shardtune.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage_lock, "_PATIENCE_S", 0)
        with pytest.raises(StorageRejected, match="is busy: another command has been writing to it"):
            write_study(study(), SIX, f"sqlite:///{tmp_path / 'link.db'}")


def test_two_writers_at_once_double_no_trial_in_postgres(empty_postgres_url):
    storage = empty_postgres_url.replace("postgresql://", "postgresql+psycopg://")
    write_study(study(), SIX[:1], storage)
    assert written_at_once(storage) == [0, 1, 2, 3, 4, 5]


def test_trials_that_were_doubled_before_are_written_anew(storage):
    write_study(study(), SIX[:2], storage)
    stored(storage).add_trials(stored(storage).trials)
    assert write_study(study(), SIX[:2], storage).added == 2
    assert [t.user_attrs["shardtune.trial"] for t in stored(storage).trials] == [0, 1]


def test_a_trial_that_became_infeasible_later_is_written_anew(storage):
    write_study(study(), TRIALS, storage)
    stored(storage).set_user_attr("mine", {"kept": 1})
    changed = TRIALS[0].model_copy(update={"state": TrialState.INFEASIBLE, "tokens_per_s_per_gpu": None})
    assert write_study(study(), (changed, *TRIALS[1:]), storage).added == 3
    assert stored(storage).user_attrs["mine"] == {"kept": 1}
    assert stored(storage).trials[0].state is OptunaState.FAIL and len(stored(storage).trials) == 3


def test_two_studies_share_a_storage_and_none_takes_the_name_of_another(storage):
    write_study(study(), TRIALS, storage)
    write_study(study(study_id="study-2"), TRIALS[:1], storage)
    with pytest.raises(
        StorageRejected, match=r"name \('study-1'\) is another study's in this storage; give a free one"
    ):
        write_study(study(study_id="study-2"), TRIALS, storage, "study-1")
    assert optuna.get_all_study_names(storage) == ["study-1", "study-2"] and len(stored(storage).trials) == 3
    stored(storage).add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(StorageRejected, match="has trials in this storage that were not written by Shardtune"):
        write_study(study(), TRIALS, storage)


def test_an_own_trial_of_the_user_is_never_deleted(storage):
    own = optuna.create_study(study_name="study-1", storage=storage)
    own.add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(StorageRejected, match="is another study's"):
        write_study(study(), TRIALS, storage)
    assert len(stored(storage).trials) == 1


REJECTED = {
    "no address": ("trials", r"storage \(not shown\) is no address of a database"),
    "no port": ("postgresql://me:secret@h:abc/x", r"storage \(not shown\) is no address of a database"),
    "password in the query": ("postgresql+psycopg://me@127.0.0.1:9/x?password=secret", "cannot be written: connection"),
    "memory": ("sqlite://", "names no file, and would keep nothing"),
    "memory by name": ("sqlite:///:memory:", "names no file, and would keep nothing"),
    "no such folder": ("sqlite:////nowhere/at/all/trials.db", "cannot be written: unable to open database file"),
    "no such database": ("nodb://host/name", "cannot be written: Can't load plugin"),
    "no server": ("postgresql+psycopg://me:secret@127.0.0.1:9/name", "cannot be written: connection"),
    "no driver": ("mysql+pymysql://me:secret@127.0.0.1:9/name", "needs the package pymysql, which is not installed"),
}


@pytest.mark.parametrize("reason", REJECTED)
def test_a_storage_that_cannot_be_written_is_an_error_without_its_password(reason):
    address, message = REJECTED[reason]
    with pytest.raises(StorageRejected, match=message) as rejected:
        write_study(study(), TRIALS, address)
    assert "secret" not in str(rejected.value)


def test_a_storage_that_may_only_be_read_is_an_error(storage, tmp_path):
    write_study(study(), TRIALS[:1], storage)
    # By the address: root may write a file of any mode.
    with pytest.raises(StorageRejected, match="cannot be written: attempt to write a readonly database"):
        write_study(study(), TRIALS, f"sqlite:///file:{tmp_path / 'trials.db'}?mode=ro&uri=true")
    assert len(stored(storage).trials) == 1


def test_a_database_of_another_program_gets_no_tables(tmp_path, sqlite_url):
    with pytest.raises(StorageRejected, match="it is the database of another program, with tables such as"):
        write_study(study(), TRIALS, sqlite_url)
    file = tmp_path / "notes.txt"
    file.write_text("no database at all, but a text of some length")
    with pytest.raises(StorageRejected, match="file is not a database"):
        write_study(study(), TRIALS, f"sqlite:///{file}")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("create table mine (id int)")
    other.close()
    with pytest.raises(StorageRejected, match="such as mine"):
        write_study(study(), TRIALS, f"sqlite:///{tmp_path / 'other.db'}")
