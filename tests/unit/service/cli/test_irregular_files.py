"""Files that a command reads: a pipe, a device or a folder in their place is an error at once."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shardtune.api_schemas.access.credentials import KeySource
from shardtune.api_schemas.access.regular_file import IrregularFile, open_regular, read_text
from shardtune.service.cli import baseline_file, lengths_file, main, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.models import source
from shardtune.service.cli.plan import options
from shardtune.service.cli.predict.measured_hardware import hardware_report
from shardtune.service.client import ServiceClient, ServiceError
from shardtune.traces import folder as trace_folder
from shardtune.traces.json_pieces import UnreadableTrace
from shardtune.workers.commands.run_trial import read_task


def _model_folder(path: Path) -> object:
    (path.parent / "model").mkdir()
    (path.parent / "model" / "config.json").symlink_to(path)
    return source.read_folder(path.parent / "model")


READERS: dict[str, Callable[[Path], object]] = {
    "study": study_file.read_json_object,
    "baseline": baseline_file.read_object,
    "model": _model_folder,
    "lengths": lengths_file.read,
    "prices": lambda path: options.read_prices(options.PriceOptions(None, str(path), None, False), ["h100"], 8),
    "measured": options.read_measurements,
    "hardware": lambda path: hardware_report("local", path, path.parent),
    "trial": read_task,
    "key": lambda path: KeySource(file=path),
    "trace": trace_folder.diagnose_folder,
}


@pytest.fixture(params=["pipe", "device", "folder"])
def irregular(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "device":
        return Path("/dev/zero") if request.node.callspec.params.get("name") != "model" else _link_to_zero(tmp_path)
    path = tmp_path / "named.json"
    os.mkfifo(path) if request.param == "pipe" else path.mkdir()
    return path


def _link_to_zero(folder: Path) -> Path:
    (folder / "zero").symlink_to("/dev/zero")
    return folder / "zero"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_rejected_at_once_with_path_and_remedy(name: str, irregular: Path) -> None:
    with pytest.raises((InputError, UnreadableTrace, ValueError)) as rejected:
        READERS[name](irregular)
    lines = getattr(rejected.value, "lines", [str(rejected.value)])
    assert any(word in lines[0] for word in ("it is a ", "it has no .json")), lines
    assert ";" in lines[0]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", 1 << 40)
    with pytest.raises(IrregularFile, match="at most 67,108,864 are read"):
        read_text(tmp_path / "large")


def test_a_file_that_says_it_is_empty_is_read_within_the_limit() -> None:
    assert "Name:" in read_text(Path("/proc/self/status"))
    with pytest.raises(IrregularFile):
        read_text(Path("/proc/self/status"), most_bytes=10)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"text"


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"model", "trace"}))
def test_a_path_with_a_nul_is_rejected_with_the_reason(name: str) -> None:
    with pytest.raises((InputError, ValueError), match="cannot be read: no file can have this name"):
        READERS[name](Path("a\0b"))


def test_a_folder_with_a_nul_is_rejected() -> None:
    with pytest.raises(UnreadableTrace, match="folder"):
        trace_folder.diagnose_folder(Path("a\0b"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["rehearse", "a\0b"], "argument"),
        (["rehearse", "llama-2-7b", "--target", "64x8xh100", "--config", "a\0b"], "--config"),
        (["export", "last", "--which", "target", "--out=a\0b"], "--out"),
        (["best", "last", "--state-dir", "a\0b"], "--state-dir"),
    ],
)
def test_an_argument_with_a_nul_is_rejected_by_name(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.startswith(f"{named} (") and "has a NUL character" in error


def test_an_id_that_no_address_can_hold_is_rejected_with_the_reason() -> None:
    with (
        ServiceClient("http://127.0.0.1:9") as client,
        pytest.raises(ServiceError, match=r"/a\\x00b: .*control character"),
    ):
        client.study("a\0b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune", "m" * 300], "is not a preset"),
        (["tune", f"{'m' * 5000}.json"], "cannot be read: File name too long"),
        (["predict", f"/{'m' * 300}"], "is not a preset"),
        (["best", "last", "--state-dir", "m" * 300], "does not exist"),
    ],
)
def test_a_name_that_is_too_long_for_a_file_is_an_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_a_study_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"model": "llama-tiny"}\r\n')
    assert study_file.read_json_object(path) == {"model": "llama-tiny"}
    path.write_bytes(b"\xef\xbb\xbf" * 2 + b"{}")
    with pytest.raises(InputError, match=r"study\.json, line 1, column 1"):
        study_file.read_json_object(path)
