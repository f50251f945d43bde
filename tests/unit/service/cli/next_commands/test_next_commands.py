"""The command that is named next is one that works: with what the worker needs again, as a shell reads it."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.studies.exports import Export
from shardtune.api_schemas.studies.study_result import Verdict
from shardtune.api_schemas.studies.verdicts import BusyMachine, OpenVerdict
from shardtune.api_schemas.training.adapters import Lora
from shardtune.service.cli import study_file
from shardtune.service.cli.tune import answer
from shardtune.service.wording.answers.verdict_line import verdict_text
from tests.unit.service.cli.next_commands.undecided_study import AGAIN, ALLOWED, options, undecided


def settles(more_pairs: int | None, max_pairs: int = 24, **changes: Any) -> str:
    return str(answer.next_command(*undecided(more_pairs, max_pairs), options(**changes)))


def test_code_that_was_allowed_is_allowed_in_the_command_that_settles_a_verdict() -> None:
    command = settles(8, allowed=ALLOWED, state_dir=Path("my studies"))
    assert command == f"shardtune tune --add-pairs 8 --state-dir 'my studies' {AGAIN}"
    assert tuple(shlex.split(command)[-4:]) == ALLOWED


def test_a_study_of_an_adapter_names_the_export_for_fine_tuning_tools_and_no_other_does() -> None:
    study, _ = undecided(8)
    assert answer.export_command(study, options()) is None
    workload = study.spec.workload.model_copy(update={"adapter": Lora()})
    adapted = study.model_copy(update={"spec": study.spec.model_copy(update={"workload": workload})})
    command = "shardtune export last --format trl --out trl"
    assert answer.export_command(adapted, options()) == f"{command} (or axolotl, llama-factory, ms-swift)"
    elsewhere = answer.export_command(adapted, options(state_dir=Path("my studies")))
    assert elsewhere is not None and elsewhere.startswith(f"{command} --state-dir 'my studies' (or ")


def test_more_pairs_than_would_just_do_are_offered_with_the_reason() -> None:
    assert settles(3) == "shardtune tune --add-pairs 6 (ends as soon as the pairs decide)"


def test_no_more_pairs_are_offered_than_a_study_may_have() -> None:
    assert settles(3, max_pairs=96).startswith("shardtune tune --add-pairs 4 (")
    assert "--add-pairs" not in settles(5, max_pairs=96)


def test_where_more_pairs_settle_nothing_the_command_is_named_and_a_quiet_machine_if_it_was_busy() -> None:
    changed = options(ranks=2, max_trials=5, memory_gib=1.5, allowed=ALLOWED, out=Path("o"))
    study, result = undecided(None)
    assert result.undecided is not None and not result.undecided.disturbed_counted_runs
    for disturbed_counted_runs, advice in ((0, "keep the baseline"), (3, "while nothing else uses this machine")):
        open_verdict = result.undecided.model_copy(update={"disturbed_counted_runs": disturbed_counted_runs})
        command = answer.next_command(study, result.model_copy(update={"undecided": open_verdict}), changed)
        assert command is not None and advice in command
        assert command.endswith(f"shardtune tune study.json --max-trials 5 --memory-gib 1.5 --ranks 2 --out o {AGAIN}")


def test_no_baseline_is_kept_where_the_candidate_is_recommended() -> None:
    study, result = undecided(None)
    faster = result.best.model_copy(update={"trial_number": 3})
    command = answer.next_command(study, result.model_copy(update={"best": faster}), options())
    assert command is not None and command.startswith("either will do; ")


def test_where_whole_steps_contradict_the_pairs_no_quiet_machine_is_asked_for() -> None:
    study, result = undecided(None)
    off = OpenVerdict(pairs=7, won_pairs=7, more_pairs=None, is_extension_off=True)
    command = answer.next_command(study, result.model_copy(update={"undecided": off}), options())
    assert command is not None and '"short_steps": false' in command and "while nothing else" not in command


def test_the_command_after_a_continued_study_names_a_file_that_exists_and_makes_the_same_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, result = undecided(None)
    study = study.model_copy(update={"result": result})
    continued_options = options(study=None, resume=True, state_dir=tmp_path, out=tmp_path / "best")
    answer.write_and_print(StoredAnswer(), study, continued_options)  # type: ignore[arg-type]
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("to decide"))
    words = shlex.split(line)
    path = Path(words[words.index("tune") + 1])
    request = study_file.validate_study(study_file.read_json_object(path), path.parent)
    assert (request.model, request.cluster) == (study.spec.model, study.cluster)
    assert request.workload.model_dump() == study.spec.workload.model_dump()


def test_a_program_reads_one_object_and_its_user_the_verdict_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tune --json` ended with the last run's line, or with a command alone: no verdict and no folder."""
    study, result = undecided(None)
    study = study.model_copy(update={"result": result})
    as_json = options(study=None, resume=True, state_dir=tmp_path, out=tmp_path / "best", as_json=True)
    answer.write_and_print(StoredAnswer(), study, as_json)  # type: ignore[arg-type]
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "undecided"
    verdict, files, command = printed.err.splitlines()
    assert verdict == f"verdict     {verdict_text(result)}"
    assert files == f"files       {tmp_path / 'best'} (config.json)"
    assert command.startswith("to decide   ") and "shardtune tune" in command


class StoredAnswer:
    """A service with one undecided study that has no trials left to show."""

    def export(self, study_id: str) -> Export:
        return Export(format="standard", files={"config.json": "{}"})

    def trials(self, study_id: str) -> list[Any]:
        return []

    def rejections(self, study_id: str) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("inputs", "has_begun", "command"),
    [
        ({}, False, "start again with: shardtune tune study.json --launcher ray"),
        ({}, True, "continue with: shardtune tune --resume --launcher ray"),
        ({"study": None, "resume": True}, False, "continue with: shardtune tune --resume --launcher ray"),
        ({"study": None, "add_pairs": 6}, False, "continue with: shardtune tune --add-pairs 6 --launcher ray"),
        ({"study": None, "add_pairs": 6}, True, "continue with: shardtune tune --resume --launcher ray"),
    ],
)
def test_who_interrupts_is_told_the_command_that_goes_on(inputs: Any, has_begun: bool, command: str) -> None:
    message = options(hosts=("--launcher", "ray"), allowed=ALLOWED, **inputs).after_interrupt(has_begun=has_begun)
    assert message[1] == f"{command} {AGAIN}"


def busy_command(rests_on: str, missing_runs: int, max_pairs: int = 24, **changes: Any) -> str:
    study, result = undecided(None, max_pairs)
    busy = BusyMachine(rests_on=rests_on, runs=18, disturbed_runs=18, uneven_pairs=9, missing_runs=missing_runs)
    result = result.model_copy(update={"verdict": Verdict.TOO_BUSY, "too_busy": busy, "undecided": None})
    return str(answer.next_command(study, result, options(**changes)))


def test_after_a_busy_machine_the_missing_pairs_are_run_and_wait_for_quiet() -> None:
    command = busy_command("pairs", 20, ranks=2)
    assert command == (
        "shardtune tune --add-pairs 10 --wait-for-quiet 30 --ranks 2 "
        "(waits for a quiet machine, 30 minutes in all; then it runs even if busy)"
    )
    assert busy_command("pairs", 20, wait_for_quiet_min=90).startswith(
        "shardtune tune --add-pairs 10 --wait-for-quiet 90"
    )


def test_what_no_pairs_can_settle_is_searched_again_and_waits_for_quiet() -> None:
    assert busy_command("search", 8).startswith("shardtune tune study.json --wait-for-quiet 30")
    assert busy_command("search", 8).count("--wait-for-quiet") == 1
    assert busy_command("pairs", 20, max_pairs=96).startswith("shardtune tune study.json"), "more than 100 pairs"
