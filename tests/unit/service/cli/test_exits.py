"""Exits of the command line: codes, messages without tracebacks, processes that never outlive it."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from shardtune.service.cli import main
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.local_stack import prepare_database_at, state_directory
from shardtune.service.cli.processes import Child, listening_socket, wait_until
from shardtune.service.cli.tune import job
from shardtune.service.cli.write_files import write_files
from shardtune.service.client import ServiceClient, ServiceRejected, ServiceUnreachable
from tests.support.foreign_revisions import at_revision

STUDY = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}}


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "missing.json"], "file (missing.json) cannot be read"),
        (["tune", "study.json", "--memory-gib", "-1"], "--memory-gib (-1.0) must be above 0"),
        (["tune", "study.json", "--memory-gib", "nan"], "--memory-gib (nan) must be above 0 and at most 1e+06"),
        (["tune", "study.json", "--memory-gib", "1e400"], "--memory-gib (inf) must be above 0 and at most 1e+06"),
        (["tune", "study.json", "--ranks", "1025"], "--ranks (1025) must be at most 1024; give such a number"),
        (["tune", "study.json", "--max-trials", "10001"], "--max-trials (10001) must be at most 10000; give"),
        (["tune", "study.json", "--max-pairs", "6"], "--max-pairs (6) must be at least 7; give such a number"),
        (["tune", "study.json", "--max-pairs", "101"], "--max-pairs (101) must be at most 100; give such a number"),
        (["tune", "study.json", "--max-pairs", "7.5"], "--max-pairs (7.5) must be a whole number; give such a number"),
        (["tune", "study.json", "--launcher", "ray", "--nodes", "100001"], "--nodes (100001) must be at most 100000;"),
        (["keys", "rotate", "k1", "--grace-s", "-1"], "--grace-s (-1) must be at least 0; give such a number"),
        (["tune", "study.json", "--resume"], "file (study.json) would change the study that --resume continues"),
        (["tune"], "STUDY (missing)"),
        (["tune", "study.json", "--nodes", "2"], "--nodes (2) must be 1 without a launcher over hosts; add --launcher"),
        (["tune", "study.json", "--out", "study.json"], "--out (study.json) cannot be written"),
        (["tune", "study.json", "--ranks", "none"], "--ranks (none) must be a whole number; give such a number"),
        (["best", "--state-dir", "nowhere"], "--state-dir (nowhere) does not exist"),
        (["run-trial", "missing.json"], "file (missing.json) cannot be read"),
    ],
)
def test_bad_input_exits_with_2_and_says_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.json").write_text(json.dumps(STUDY))
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err
    assert captured.out == ""


def test_a_service_that_does_not_answer_exits_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("best", "--service", "http://127.0.0.1:9") == 4
    stderr = capsys.readouterr().err
    assert "no answer from the service at http://127.0.0.1:9" in stderr and "name another with --service" in stderr


def test_the_database_is_migrated_and_named_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SHARDTUNE_DATABASE_URL", raising=False)
    assert run("db", "upgrade", "--state-dir", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["migrated"] is True
    assert (tmp_path / "shardtune.sqlite3").exists()
    prepare_database_at(f"sqlite:///{tmp_path / 'shardtune.sqlite3'}")
    monkeypatch.setenv("SHARDTUNE_DATABASE_URL", "postgresql://u:secret@127.0.0.1:9/x")
    assert run("db", "upgrade") == 4
    assert "secret" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["tune", "study.json"], ["db", "upgrade"]])
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_database_of_an_unreleased_revision_exits_with_4_and_the_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    kind: str,
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.json").write_text(json.dumps(STUDY))
    url = f"sqlite:///{tmp_path}/old.sqlite3" if kind == "sqlite" else request.getfixturevalue("empty_postgres_url")
    at_revision(url, "0025")
    monkeypatch.setenv("SHARDTUNE_DATABASE_URL", url)
    assert run(*command) == 4
    message = capsys.readouterr().err
    assert "is at revision 0025 of an unreleased version" in message and "shardtune db upgrade" in message
    assert ("move old.sqlite3 away" if kind == "sqlite" else "drop the database") in message


def test_a_state_directory_has_one_user_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with state_directory(tmp_path):
        assert run("best", "--state-dir", str(tmp_path)) == 2
    assert "in use by another shardtune" in capsys.readouterr().err


def test_a_state_directory_whose_lock_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """As on a read-only or full file system: an error of the kernel beyond missing permissions."""
    (tmp_path / "tune.lock").mkdir()
    with (
        pytest.raises(InputError, match=r"--state-dir .* cannot be written: Is a directory"),
        state_directory(tmp_path),
    ):
        pass


def test_a_failure_within_the_state_directory_is_not_blamed_on_it(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), state_directory(tmp_path):
        raise PermissionError(13, "another file")


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """A disk that takes empty files and no bytes beyond a few: the kernel ends writes at this limit. No fixture, because
    pytest itself writes before it ends a fixture, maybe into a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_named_before_the_first_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with full_disk(), pytest.raises(InputError, match=r"--out .* cannot be written"):
        job.check_out_is_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv("SHARDTUNE_DATABASE_URL", raising=False)
    with full_disk(), pytest.raises(PlatformFailure, match="the disk of --state-dir has room"):
        prepare_database_at(f"sqlite:///{tmp_path}/shardtune.sqlite3")


def test_exported_files_replace_those_of_an_earlier_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(Path("best"), {"ds_config.json": "{}", ".deepspeed_env": "A=1", "launch.sh": "true"})
    assert write_files(Path("best"), {"launch.sh": "true"}) == ["best/launch.sh"]
    assert [path.name for path in Path("best").iterdir()] == ["launch.sh"]
    assert os.access("best/launch.sh", os.X_OK)


def test_a_child_dies_with_its_parent_even_by_sigkill(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from shardtune.service.cli.processes import Child\n"
        f"child = Child('sleeper', [sys.executable, '-c', 'import time; time.sleep(600)'], Path({str(tmp_path / 'log')!r}))\n"
        "child.start(); print(child._process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    # Until it has become its command it may not have asked the kernel yet.
    while "time.sleep" not in " ".join(child.cmdline()):
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert not psutil.wait_procs([child], timeout=30)[1]


def test_a_child_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    child = Child("the worker", [sys.executable, "-c", "print('no disk left'); raise SystemExit(7)"], tmp_path / "log")
    child.start()
    with pytest.raises(PlatformFailure, match=r"exit code 7 before it was ready[\s\S]*no disk left"):
        wait_until(lambda: False, child, 60, "ready")


def test_a_stubborn_child_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    child = Child("stubborn", [sys.executable, "-c", stubborn], tmp_path / "log")
    child.start()
    wait_until(lambda: child.log_tail() == ["up"], child, 60, "up")
    child.stop(patience_s=0.2)
    assert child.exit_code() == -signal.SIGKILL


def test_the_system_chooses_free_ports() -> None:
    with listening_socket() as first, listening_socket() as second:
        assert first.getsockname()[1] != second.getsockname()[1]


class Answering(httpx.BaseTransport):
    """A service that gives one answer to everything."""

    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(self.status, json=self.body)


def answering(status: int, body: object) -> ServiceClient:
    return ServiceClient("http://service", transport=Answering(status, body))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            {"field": "budget.max_trials", "value": 0, "message": "must be 1 or more; use 8"},
            "budget.max_trials (0): must be",
        ),
        (
            {"field": "workload.global_batch", "value": 7, "message": "global_batch (7) must divide"},
            "workload.global_batch (7) must",
        ),
        ({"field": "a.b", "value": 1, "message": "a.b (1), but c is 2"}, "a.b (1), but c is 2"),
    ],
)
def test_a_problem_is_one_readable_line_per_field(error: dict[str, object], line: str) -> None:
    with (
        answering(422, {"code": "x", "detail": "wrong", "errors": [error]}) as client,
        pytest.raises(ServiceRejected) as rejected,
    ):
        client.study("s")
    assert rejected.value.is_input_error
    assert [text[: len(line)] for text in rejected.value.lines()] == [line]


def test_an_answer_that_is_no_problem_document_still_has_a_message() -> None:
    with answering(502, "bad gateway") as client, pytest.raises(ServiceRejected, match="HTTP 502"):
        client.studies()


def test_no_answer_is_unreachable_and_not_ready() -> None:
    with ServiceClient("http://127.0.0.1:9") as client:
        assert not client.ready()
        with pytest.raises(ServiceUnreachable):
            client.workers()
