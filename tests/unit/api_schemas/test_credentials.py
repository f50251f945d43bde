"""A worker's API key by a descriptor: in no file, no environment and no readable memory."""

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardtune.api_schemas.access.credentials import DESCRIPTOR_VARIABLE, KeySource
from tests.support.processes import other_user

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


DEPLOY = Path(__file__).parents[3] / "deploy"


def test_only_a_worker_in_a_slurm_job_gets_a_key_by_a_file():
    """Ranks have the worker's user, and could read it."""
    with_file = [path for path in DEPLOY.rglob("*") if path.is_file() and "SHARDTUNE_API_KEY_FILE" in path.read_text()]
    assert [path.relative_to(DEPLOY).as_posix() for path in with_file] == ["slurm/worker.sbatch"]


def descriptor_with(content):
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    return read


def test_a_key_is_read_from_a_descriptor_once_and_the_descriptor_is_closed():
    descriptor = descriptor_with(b"shardtune_secret\n")
    environment = {DESCRIPTOR_VARIABLE: str(descriptor), "SHARDTUNE_API_KEY_FILE": "/nowhere"}
    assert KeySource.take_from_environment(environment).key == "shardtune_secret"
    assert environment == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe", "is no text"), (b"x" * 5000, "has more than 4096 bytes")],
)
def test_a_descriptor_without_a_key_is_an_error_with_the_remedy(content, says):
    with pytest.raises(ValueError, match=rf"SHARDTUNE_API_KEY_FD \(\d+\) {says}.*< worker.key"):
        KeySource.take_from_environment({DESCRIPTOR_VARIABLE: str(descriptor_with(content))})


@pytest.mark.parametrize("text", ["", "-1", "stdin", "99999", "9" * 30, "9" * 5000, "٣"])
def test_what_is_no_open_descriptor_is_an_error_with_the_remedy(text):
    with pytest.raises(ValueError, match=r"SHARDTUNE_API_KEY_FD \(.*\) (?:is no number|cannot be read).*< worker.key"):
        KeySource.take_from_environment({DESCRIPTOR_VARIABLE: text})


@pytest.mark.parametrize("variable", [DESCRIPTOR_VARIABLE, "SHARDTUNE_API_KEY_FILE"])
def test_a_key_in_the_variable_of_a_descriptor_or_a_file_is_not_shown(variable):
    secret = "shardtune_" + "Ib0_CwKGz5X" * 4
    with pytest.raises(ValueError, match=rf"{variable} \(not shown\)") as rejected:
        KeySource.take_from_environment({variable: secret[:53]})
    assert "Ib0" not in str(rejected.value)


@pytest.mark.parametrize("content", [b"", b"shardtune_secret"])
def test_a_descriptor_that_does_not_end_is_an_error_in_time(content):
    """Somebody keeps the pipe's writing end open."""
    read, write = os.pipe()
    os.write(write, content)
    started_s = time.monotonic()
    with pytest.raises(ValueError, match=r"SHARDTUNE_API_KEY_FD \(\d+\) did not end within 0.2 s; close") as rejected:
        KeySource.take_from_environment({DESCRIPTOR_VARIABLE: str(read)}, patience_s=0.2)
    assert "secret" not in str(rejected.value) and time.monotonic() - started_s < 10
    for descriptor in (read, write):
        os.close(descriptor)


def test_a_descriptor_that_does_not_block_is_waited_for():
    read, write = os.pipe()
    os.set_blocking(read, False)

    def write_later():
        time.sleep(0.2)
        os.write(write, b"shardtune_secret\r\n")
        os.close(write)

    with ThreadPoolExecutor() as threads:
        threads.submit(write_later)
        assert KeySource.take_from_environment({DESCRIPTOR_VARIABLE: str(read)}).key == "shardtune_secret"


def test_a_key_beside_a_descriptor_is_an_error_because_the_descriptor_would_keep_its_own():
    """Ray's processes hold the same pipe, and ranks of their user can read what nobody has read."""
    descriptor = descriptor_with(b"shardtune_other")
    with pytest.raises(ValueError, match="are both set; unset one of them") as rejected:
        KeySource.take_from_environment({DESCRIPTOR_VARIABLE: str(descriptor), "SHARDTUNE_API_KEY": "shardtune_secret"})
    assert "shardtune_" not in str(rejected.value)
    os.close(descriptor)


@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_a_standard_stream_stays_open_after_the_key_was_read_from_it(descriptor):
    """The next file that the worker opens would take its number: children would read it, or lines be printed into it."""

    def read_key():
        os.dup2(descriptor_with(b"secret"), descriptor)
        os.environ[DESCRIPTOR_VARIABLE] = str(descriptor)
        assert KeySource.take_from_environment().key == "secret"
        stream = Path(f"/proc/self/fd/{descriptor}")
        assert str(stream.readlink()) == "/dev/null" and os.get_inheritable(descriptor)

    with other_user.acting(read_key):
        pass


def test_no_other_process_of_the_user_reads_the_memory_of_one_that_holds_a_key():
    """Ranks have the agent's user; both processes here are of a user without rights."""

    def hold_key():
        # The change of user has cleared it, which an agent's start does not.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        os.environ["SHARDTUNE_API_KEY"] = "secret"
        assert KeySource.take_from_environment().key == "secret"
        assert ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) == 0

    def read(pid):
        for name in ("mem", "environ", "maps"):
            try:
                with Path(f"/proc/{pid}/{name}").open("rb") as file:
                    file.read(1)
            except PermissionError:
                continue
            raise AssertionError(f"/proc/PID/{name} can be read")

    with other_user.acting(hold_key) as holder, other_user.acting(lambda: read(holder)):
        pass


@pytest.mark.parametrize("content", ["sk-SECRET\n# my key\n", "sk-SECRET other", "sk-SECRÉT", "sk-SECRET\x00x"])
def test_a_text_that_is_no_key_is_an_error_that_does_not_show_it(tmp_path, content):
    file = tmp_path / "key"
    file.write_text(content)
    for source in (lambda: KeySource(file=file), lambda: KeySource(content)):
        with pytest.raises(ValueError, match="must hold one key and nothing else") as rejected:
            source()
        assert "SECR" not in str(rejected.value)
