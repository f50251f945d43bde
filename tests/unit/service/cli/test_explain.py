"""`explain --trace`: a table and three sentences, JSON, and bad input with exit code 2; no service is needed."""

import gzip
import json
import re

import pytest

from shardtune.api_schemas.trials.diagnosis import Diagnosis, RemedyResult
from shardtune.service.cli import main
from shardtune.service.wording.diagnosis_words import remedy_in_words
from tests.support.values import synthetic_traces


def ends(arguments: list[str]) -> int:
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def folder(tmp_path):
    return synthetic_traces.write(tmp_path / "traces", synthetic_traces.drawn_on_cpu(1, world_size=4))


def test_a_table_and_three_sentences(folder, capsys):
    assert ends(["explain", "--trace", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "transferring" in printed and "all-reduces of gradients" in printed
    assert "host: time in no other part (Python, dispatch); idle: measured on GPUs only" in printed
    # Sizes are binary, and speeds decimal.
    assert "iB" in printed and not re.search(r"[kMG]B(?!/s)", printed) and re.search(r"\d [kMG]B/s", printed)
    for begin in ("A step took 1.0 ms", "Communication ran for", "Rank "):
        assert begin in printed


def test_findings_stand_below_with_what_is_expected_of_them(tmp_path, capsys):
    steps = [synthetic_traces.step(n, 1000 * n, 1000 * n + 1000) for n in range(3)]
    work = [synthetic_traces.event("cpu_op", "aten::mm", 1000 * n, 1000 * n + 400) for n in range(3)]
    folder = synthetic_traces.write(tmp_path, [synthetic_traces.trace(rank, 2, steps + work) for rank in range(2)])
    assert ends(["explain", "--trace", str(folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "1. The host launches kernels too slowly: for 60% of the step or more nothing is launched, on every rank."
        in printed
    )
    assert "expected to save 30% of the step (estimated as half of that time, not measured)" in printed


def test_a_remedy_that_was_tried_is_told_with_its_interval():
    measured = {"speedup": 1.11, "ci95": (1.07, 1.14), "pairs": 9}
    for outcome, says in (
        ("faster", "+11 % [7, 14] (9 paired runs, study-2)"),
        ("not_faster", "did not help: +11 %"),
        ("undecided", "undecided: +11 %"),
    ):
        assert remedy_in_words(RemedyResult(study_id="study-2", outcome=outcome, **measured)).startswith(says)
    failed = RemedyResult(study_id="study-2", outcome="does_not_run", why="over_limit: 5 GiB")
    assert remedy_in_words(failed) == "does not run: over_limit: 5 GiB (study-2)"


def test_the_same_as_json_and_small(tmp_path, capsys):
    folder = synthetic_traces.write(tmp_path / "traces", synthetic_traces.drawn_on_cuda(1, world_size=8), packed=False)
    assert ends(["explain", "--trace", str(folder), "--json"]) == 0
    printed = capsys.readouterr().out
    diagnosis = Diagnosis.model_validate(json.loads(printed))
    assert diagnosis.ranks == tuple(range(8)) and len(printed) < 10_000


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: None, "does not exist"),
        (lambda folder: folder.mkdir(), "has no .json or .json.gz"),
        (lambda folder: (folder.mkdir(), (folder / "rank_0.json.gz").write_bytes(CUT)), "rank_0.json.gz"),
    ],
)
def test_bad_input_names_the_file_and_the_remedy(make, says, tmp_path, capsys):
    make(tmp_path / "none")
    assert ends(["explain", "--trace", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert says in error and str(tmp_path / "none") in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["last", "--trace", "traces"], "--trace (traces) replaces the study; leave out the study and --trial"),
        (["--trial", "3", "--trace", "traces"], "leave out the study and --trial"),
        (["--try", "--trace", "traces"], "--try measures a trial of a study, and --trace (traces) has no study"),
        (["--state-dir", "none"], "--state-dir (none) does not exist; run `shardtune tune` first"),
        (["study-1", "--state-dir", "none"], "--state-dir (none) does not exist"),
    ],
)
def test_what_is_to_be_explained_is_said_once_and_is_there(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert ends(["explain", *arguments]) == 2
    assert says in capsys.readouterr().err


CUT = gzip.compress(json.dumps(synthetic_traces.drawn_on_cpu(1)[0]).encode())[:-200]
