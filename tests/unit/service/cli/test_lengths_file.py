"""Lengths of samples from files: `--data FILE`, `--layout`, and paths in study files."""

from pathlib import Path
from typing import Any

import pytest

from shardtune.service.cli import lengths_file, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import study_input
from shardtune.service.cli.tune.continuation import check_unchanged
from shardtune.service.cli.tune.options import TuneOptions

STUDY: dict[str, Any] = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lengths.jsonl"
    path.write_text(text)
    return path


def with_data(spec: Any, data: Any) -> Any:
    return study_input.with_options(spec, data=data)


def test_numbers_and_lists_of_token_ids_are_counted(tmp_path: Path) -> None:
    text = '12\n[3, 1, 4]\n\n{"input_ids": [1, 2, 3]}\n{"length": 12, "text": "…"}\n'
    for mark in ("", "\ufeff"):
        assert lengths_file.read(written(tmp_path, mark + text)) == [[3, 2], [12, 2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no samples"),
        ("\n \n", "holds no samples"),
        ("12\n-5\n", "line 2 (-5) is below 2 tokens"),
        ("0\n", "line 1 (0) is below 2 tokens"),
        ("[7]\n", "line 1 (1) is below 2 tokens"),
        ("-Infinity\n", "line 1 (-inf)"),
        ("[512, 37, 4096]\n", "may hold lengths in lists"),
        ("\ufeff[512, 37, 4096]\n", "may hold lengths in lists"),
        ("\ufeff\n", "holds no samples"),
        ("[8, 600]\n[20, 300]\n", "may hold lengths in lists"),
        ("12\ntext\n", "line 2 is not JSON ('text')"),
        ('"a sentence"\n', "line 1 holds no token ids; count tokens with your tokenizer"),
        ('["a", "b"]\n', "line 1 holds no token ids"),
        ('{"words": "a"}\n', "line 1 has neither input_ids nor length; give one JSON value a line"),
        ('4\n{"text": "a"}\n', "line 2 has neither input_ids nor length; this looks like training data"),
        ('{"messages": []}\n', "lengths in tokens are wanted: count them with your tokenizer"),
        ('{"text": "a"}\n', "docs/how-to/samples-of-several-lengths.md"),
        ("9999999999\n", "line 1 (9999999999) is above 4194304 tokens"),
        ("null\n", "line 1 (None) must be a number of tokens"),
        ("[" * 100_000, "line 1 is not JSON"),
        ("1" * 5000, "line 1 is not JSON"),
        ("1" * 4000, "line 1 (1111"),
    ],
)
def test_a_line_without_a_sample_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        lengths_file.read(written(tmp_path, text))
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["none.jsonl", ".", "/dev/zero", "x" * 5000, "a\0b"])
def test_a_path_without_a_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="data"):
        lengths_file.read(tmp_path / name)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, "12\n")
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    with pytest.raises(InputError, match="write the lengths alone"):
        lengths_file.read(path)


def test_a_study_file_names_a_file_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "12\n30\n12\n")
    for data, layout in (("lengths.jsonl", "padded"), ({"lengths": "lengths.jsonl", "layout": "grouped"}, "grouped")):
        study = study_file.validate_study(STUDY | {"workload": STUDY["workload"] | {"data": data}}, tmp_path)
        assert study.workload.data is not None
        assert (study.workload.data.lengths, study.workload.data.layout) == (((12, 2), (30, 1)), layout)


def test_options_replace_a_studys_data_and_say_so(tmp_path: Path) -> None:
    spec = study_file.validate_study(STUDY, tmp_path)
    first, replaced = with_data(spec, lengths_file.option_values(written(tmp_path, "12\n"), None))
    assert first.workload.data.lengths == ((12, 1),) and not replaced
    second, replaced = with_data(first, lengths_file.option_values(None, "grouped"))
    assert (second.workload.data.lengths, second.workload.data.layout) == (((12, 1),), "grouped")
    assert replaced == ["data of 12 tokens (mean 12), grouped replaces the study's"]


def test_a_layout_alone_needs_lengths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--layout \(grouped\) arranges samples of several lengths"):
        with_data(study_file.validate_study(STUDY, tmp_path), {"layout": "grouped"})


def test_samples_longer_than_the_studys_sequences_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"exceeds sequence_length \(64\); raise sequence_length to 65"):
        with_data(study_file.validate_study(STUDY, tmp_path), {"lengths": [65]})


def test_the_next_command_names_the_file_again(tmp_path: Path) -> None:
    options = TuneOptions(
        Path("study.json"), None, None, None, False, Path(".shardtune"), Path("best"), False,
        data=Path("my lengths.jsonl"), layout="grouped",
    )  # fmt: skip
    assert options.from_the_start().endswith("--data 'my lengths.jsonl' --layout grouped")
    resumed = TuneOptions(**{**vars(options), "study": None, "resume": True})
    with pytest.raises(InputError, match="--data"):
        check_unchanged(resumed)


def test_a_file_of_too_many_lines_is_rejected_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(lengths_file, "MOST_LINES", 3)
    file = tmp_path / "many.jsonl"
    file.write_text("no JSON\n" * 4)
    with pytest.raises(InputError, match=r"more than 3 lines; .*shuf -n 1000000 many.jsonl"):
        lengths_file.read(file)
    file.write_text("7\n7\n8\n")
    assert lengths_file.read(file) == [[7, 2], [8, 1]]
