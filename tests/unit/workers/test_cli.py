"""`python -m shardtune.workers` before anything is started: what it accepts, and how it refuses."""

import pytest

from shardtune.workers.__main__ import main
from shardtune.workers.commands.run_trial import read_task
from shardtune.workers.machine.device_lock import hold


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "one JSON object"),
        ("{}", "model"),
        ('{"kind": "dance"}', "dance"),
    ],
)
def test_a_file_that_is_no_trial_is_exit_code_2(tmp_path, capsys, text, says):
    path = tmp_path / "trial.json"
    path.write_text(text)
    assert main(["run-trial", str(path)]) == 2
    output = capsys.readouterr()
    assert says in output.err
    assert output.out == ""


def test_a_missing_file_is_exit_code_2(tmp_path, capsys):
    assert main(["run-trial", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_a_wrong_option_names_itself(capsys):
    assert main(["detect", "--ranks", "0"]) == 2
    assert "ranks" in capsys.readouterr().err


def test_a_file_without_kind_is_a_trial(tmp_path, task):
    path = tmp_path / "config.json"
    path.write_text(task.model_dump_json(exclude={"kind"}))
    assert read_task(path) == task


def test_a_busy_machine_is_exit_code_1(tmp_path, capsys, task, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "config.json"
    path.write_text(task.model_dump_json())
    with hold(tmp_path / "work", []):
        assert main(["run-trial", str(path), "--work-dir", str(tmp_path / "work")]) == 1
    assert "in use by another" in capsys.readouterr().err
