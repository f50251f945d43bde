"""`tune --resume` and `--add-pairs` take each other option or reject it; none is ignored without a word."""

import inspect
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.training.adapters import Lora
from shardtune.service.cli import main
from shardtune.service.cli.commands.tune import tune
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import continuation
from shardtune.service.cli.tune.options import OF_EVERY_RUN, TuneOptions

APPLIES = {"ranks", "as_json", "state_dir", "out", "allow_model", "allow_script", "launcher", "nodes", "resume"}
"""Parameters of the command that a stored study takes."""
REJECTED: dict[str, list[str]] = {
    "study": ["study.json"],
    "max_trials": ["--max-trials", "3"],
    "max_pairs": ["--max-pairs", "8"],
    "memory_gib": ["--memory-gib", "2"],
    "lora": ["--lora", "8"],
    "qlora": ["--qlora", "8"],
    "dora": ["--dora", "8"],
    "last_layers": ["--last-layers", "2"],
    "data": ["--data", "lengths.jsonl"],
    "layout": ["--layout", "packed"],
    "target": ["--target", "8x8"],
    "rungs": ["--rungs", "1,2"],
    "cost": ["--cost"],
    "wait_for_quiet": ["--wait-for-quiet", "5"],
    "add_pairs": ["--add-pairs", "3"],
}
"""Words of an option that `--resume` rejects, by parameter of the command."""


def test_every_parameter_of_the_command_is_in_one_of_the_two_lists_of_this_test() -> None:
    assert set(inspect.signature(tune).parameters) == {*APPLIES, *REJECTED}


@pytest.mark.parametrize("parameter", REJECTED)
def test_an_option_that_cannot_apply_to_a_resumed_study_is_an_error(
    parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = REJECTED[parameter]
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--resume", *words])
    message = capsys.readouterr().err
    assert ended.value.code == 2 and "--resume" in message and words[0] in message
    assert list(tmp_path.iterdir()) == [], "nothing was started"


@pytest.mark.parametrize("flag", [["--resume"], ["--add-pairs", "3"]], ids=["resume", "add-pairs"])
def test_a_missing_state_directory_is_an_error_and_is_not_made(
    flag: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHARDTUNE_DATABASE_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["tune", *flag, "--state-dir", "missing"])
    message = capsys.readouterr().err
    assert ended.value.code == 2 and f"{flag[0]}: --state-dir (missing) does not exist" in message
    assert list(tmp_path.iterdir()) == [], "nothing was started"


@pytest.mark.parametrize("field", ["max_trials", "max_pairs", "memory_gib"])
def test_a_zero_is_an_option_that_was_given(field: str) -> None:
    arguments = {"study": None, "ranks": None, "max_trials": None, "memory_gib": None, "resume": True}
    places = {"state_dir": Path(".shardtune"), "out": Path("best"), "as_json": False}
    options = TuneOptions(**{**arguments, **places, field: 0})
    with pytest.raises(InputError, match=rf"--{field.replace('_', '-')} \(0\) would change the study"):
        continuation.check_unchanged(options)


@dataclass(frozen=True)
class PlantedOptions(TuneOptions):
    """Options with one more, of which no other place knows."""

    planted_size: int | None = None


@pytest.mark.parametrize("flag", [{"resume": True}, {"add_pairs": 3}])
def test_a_new_option_that_no_list_names_is_rejected_for_a_stored_study(flag: dict[str, Any]) -> None:
    arguments = {"study": None, "ranks": None, "max_trials": None, "memory_gib": None, "resume": False}
    places = {"state_dir": Path(".shardtune"), "out": Path("best"), "as_json": False}
    continuation.check_unchanged(PlantedOptions(**{**arguments, **places, **flag}))
    with pytest.raises(InputError, match=r"--planted-size \(7\) would change the study that"):
        continuation.check_unchanged(PlantedOptions(**{**arguments, **places, **flag}, planted_size=7))


PRINTED: dict[str, tuple[Any, list[str]]] = {
    "study": (Path("study.json"), ["study.json"]),
    "ranks": (2, ["--ranks", "2"]),
    "max_trials": (3, ["--max-trials", "3"]),
    "max_pairs": (8, ["--max-pairs", "8"]),
    "memory_gib": (1.5, ["--memory-gib", "1.5"]),
    "state_dir": (Path("state"), ["--state-dir", "state"]),
    "out": (Path("here"), ["--out", "here"]),
    "as_json": (True, ["--json"]),
    "allowed": (("--allow-model", "lora"), ["--allow-model", "lora"]),
    "hosts": (("--launcher", "slurm", "--nodes", "2"), ["--launcher", "slurm", "--nodes", "2"]),
    "wait_for_quiet_min": (5, ["--wait-for-quiet", "5"]),
    "adapter": (Lora(rank=8, alpha=16), ["--lora", "8"]),
    "data": (Path("lengths.jsonl"), ["--data", "lengths.jsonl"]),
    "layout": ("packed", ["--layout", "packed"]),
    "target": ("8x8", ["--target", "8x8"]),
    "rungs": ((1, 2), ["--rungs", "1,2"]),
}
"""Value of an option and its words in the command that starts a study again."""
UNPRINTED = {"resume", "add_pairs", "cost", "study_id", "rung"}
"""Options that a command which creates a study anew does not have."""


def test_the_command_that_starts_again_has_every_option() -> None:
    assert {field.name for field in fields(TuneOptions)} == {*PRINTED, *UNPRINTED}
    options = TuneOptions(resume=False, **{name: value for name, (value, _) in PRINTED.items()})
    printed, again = shlex.join(shlex.split(options.from_the_start())), options.again()
    for name, (_, words) in PRINTED.items():
        assert shlex.join(words) in printed, name
        assert (shlex.join(words) in again) == (name in OF_EVERY_RUN), name
