"""A worker's API key by a descriptor: in no file, no environment and no readable memory."""

import ctypes
import os
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


@pytest.mark.parametrize("text", ["", "-1", "stdin", "99999", "9" * 30, "٣"])
def test_what_is_no_open_descriptor_is_an_error_with_the_remedy(text):
    with pytest.raises(ValueError, match=r"SHARDTUNE_API_KEY_FD \(.*\) (?:is no number|cannot be read).*< worker.key"):
        KeySource.take_from_environment({DESCRIPTOR_VARIABLE: text})


def test_standard_input_stays_open_after_the_key_was_read_from_it():
    def read_key():
        os.dup2(descriptor_with(b"secret"), 0)
        os.environ[DESCRIPTOR_VARIABLE] = "0"
        assert KeySource.take_from_environment().key == "secret"
        assert str(Path("/proc/self/fd/0").readlink()) == "/dev/null" and os.get_inheritable(0)

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
