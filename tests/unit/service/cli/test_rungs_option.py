"""Option `--rungs` of `tune`: the study on smaller sizes first."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardtune.service.cli import study_file
from shardtune.service.cli.errors import InputError, NothingFeasible
from shardtune.service.cli.tune import rungs
from shardtune.service.cli.tune.options import TuneOptions
from tests.support.values.synthetic_studies import CPU

OPTIONS = TuneOptions(Path("study.json"), None, None, None, False, Path(".shardtune"), Path("best"), as_json=True)
STUDY = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 64}}


def runs(sizes: str, options: TuneOptions) -> list[TuneOptions]:
    """Options of each study that the command runs."""
    asked: list[TuneOptions] = []
    rungs.tune(rungs.parse(sizes), options, asked.append)
    return asked


def test_the_sizes_are_numbers_of_ranks_on_this_machine() -> None:
    first, second, last = runs("2,1", replace(OPTIONS, ranks=4))
    assert [first.ranks, second.ranks, last.ranks] == [1, 2, 4] and last.rung is None
    assert first.out == Path("best/rungs/1") and second.out == Path("best/rungs/2") and last.out == Path("best")


def test_the_sizes_are_numbers_of_nodes_with_a_launcher() -> None:
    first, last = runs("1", replace(OPTIONS, hosts=("--launcher", "slurm", "--nodes", "2")))
    assert first.hosts == ("--launcher", "slurm", "--nodes", "1") and first.ranks is None
    assert last.hosts == ("--launcher", "slurm", "--nodes", "2")


def test_stdout_holds_the_last_answer_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def tune_once(options: TuneOptions) -> None:
        print(f"answer of {options.rung}, json {options.as_json}")

    rungs.tune((1,), replace(OPTIONS, ranks=2), tune_once)
    output = capsys.readouterr()
    assert output.out == "answer of None, json True\n"
    assert output.err.splitlines() == ["rung 1 of 1: 1 rank", "answer of 1, json False"]


def test_a_size_on_which_nothing_fits_is_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    def tune_once(options: TuneOptions) -> None:
        if options.rung is not None:
            raise NothingFeasible("no configuration fits")

    rungs.tune((1,), replace(OPTIONS, ranks=2), tune_once)
    assert "nothing was measured on 1 rank: no configuration fits" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "0", "1,,2", "one", "-1", "1.5", "²", "1,1", "1,2,3,4,5", "9" * 10, "1\n2"])
def test_what_is_no_list_of_sizes_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match=r"--rungs \("):
        rungs.parse(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resume": True}, "--resume exclude"),
        ({"add_pairs": 3}, "--add-pairs exclude"),
        ({"cost": True}, "--cost exclude"),
        ({}, "needs --ranks"),
        ({"hosts": ("--launcher", "slurm")}, "needs --nodes"),
        ({"ranks": 2}, r"must be smaller than --ranks \(2\)"),
        ({"hosts": ("--launcher", "slurm", "--nodes", "2")}, r"must be smaller than --nodes \(2\)"),
    ],
)
def test_options_that_exclude_each_other_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        rungs.check((1, 2), replace(OPTIONS, **changes))


@pytest.mark.parametrize(
    ("cluster", "over_hosts", "smaller"),
    [
        ("2x8xh100", True, "1x8xH100-SXM5-80GB"),
        ("8xh100", False, "1x1xH100-SXM5-80GB"),
        ("local", True, "local"),
        (CPU, True, CPU.model_copy(update={"nodes": 1})),
        (CPU, False, CPU.model_copy(update={"nodes": 1, "gpus_per_node": 1})),
    ],
)
def test_a_smaller_size_has_fewer_of_the_studys_gpus(cluster: Any, over_hosts: bool, smaller: Any) -> None:
    spec = study_file.validate_study(STUDY | {"target": "64x8"}, Path()).model_copy(update={"cluster": cluster})
    options = replace(OPTIONS, rung=1, hosts=("--launcher", "slurm", "--nodes", "1") if over_hosts else ())
    assert rungs.smaller_study(spec, options).cluster == smaller
    assert rungs.smaller_study(spec, OPTIONS) == spec


def test_a_smaller_size_needs_a_target() -> None:
    spec = study_file.validate_study(STUDY, Path())
    with pytest.raises(InputError, match="needs a target"):
        rungs.smaller_study(spec, replace(OPTIONS, rung=1))
