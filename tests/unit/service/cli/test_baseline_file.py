"""Baseline files that a hostile repository may hold: they are answered at once, and harm no terminal."""

from pathlib import Path

import pytest

from shardtune.service.cli import baseline_file
from shardtune.service.cli.errors import InputError


def test_nested_merge_keys_end_with_an_error_and_not_after_hours(tmp_path: Path) -> None:
    levels = "\n".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9))
    file = tmp_path / "merge.yaml"
    file.write_text(f"a0: &a0 {{{', '.join(f'k{n}: 1' for n in range(9))}}}\n{levels}\n")
    with pytest.raises(InputError, match=r"merge keys make more than .* entries"):
        baseline_file.read_object(file)


def test_a_merge_key_as_people_write_them_is_read(tmp_path: Path) -> None:
    file = tmp_path / "usual.yaml"
    file.write_text("base: &base {lr: 1}\nown:\n  <<: *base\n  steps: 2\n")
    assert baseline_file.read_object(file)["own"] == {"lr": 1, "steps": 2}


def test_a_message_with_a_files_words_holds_no_commands_for_the_terminal() -> None:
    error = InputError("baseline.\x1b[31mred is no key", "second line\x07")
    assert error.lines == [r"baseline.\x1b[31mred is no key", r"second line\x07"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ds.json", '{"zero_optimization": {"stage": 2, "reduce_bucket_size": NaN}}', "reduce_bucket_size (nan)"),
        ("ds.json", '{"zero_optimization": {"unread": [0, 1e999]}}', "zero_optimization.unread.1 (inf)"),
        ("accelerate.yaml", "fsdp_config:\n  ratio: -.inf\n", "fsdp_config.ratio (-inf)"),
    ],
)
def test_no_file_holds_a_number_that_is_not_finite(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as rejected:
        baseline_file.read_object(tmp_path / name)
    assert f"{words} must be a finite number; give one, or drop the key" in str(rejected.value.lines)
    assert name in str(rejected.value.lines)
