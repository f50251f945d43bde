"""Option `--rungs` of `tune`: the study on smaller sizes first."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest
from shardtune.service.cli import local_stack, study_file
from shardtune.service.cli.errors import CliError, InputError, Interrupted, NothingFeasible, PlatformFailure
from shardtune.service.cli.tune import rungs, smaller_studies
from shardtune.service.cli.tune.options import TuneOptions
from tests.support.values.synthetic_studies import CPU, study_of

OPTIONS = TuneOptions(Path("study.json"), None, None, None, False, Path(".shardtune"), Path("best"), as_json=True)
STUDY = {"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 64, "precision": "fp32"}}
SLURM = ("--launcher", "slurm", "--nodes")


class Studies:
    """Studies that a command runs: each is noted, and ends as `ends` says for its size."""

    def __init__(self, ends: dict[int | None, BaseException] | None = None) -> None:
        self.asked: list[tuple[TuneOptions, StudyRequest]] = []
        self._ends = ends or {}

    def run(self, state_dir: Path, spec: StudyRequest, options: TuneOptions) -> Study:
        assert state_dir.is_dir()
        self.asked.append((options, spec))
        if options.rung in self._ends:
            raise self._ends[options.rung]
        print(f"answer of {options.rung}, json {options.as_json}")
        return study_of()

    @property
    def sizes(self) -> list[int | None]:
        return [options.rung for options, _ in self.asked]


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(local_stack.DATABASE_VARIABLE, raising=False)
    write()


def write(**changes: Any) -> None:
    Path("study.json").write_text(json.dumps(STUDY | {"target": "8x4"} | changes))


def tune(sizes: str, ends: dict[int | None, BaseException] | None = None, **changes: Any) -> Studies:
    studies = Studies(ends)
    rungs.tune(rungs.parse(sizes), replace(OPTIONS, **changes), studies.run)
    return studies


def test_the_sizes_are_numbers_of_ranks_on_this_machine() -> None:
    first, second, last = [options for options, _ in tune("2,1", ranks=4).asked]
    assert [first.ranks, second.ranks, last.ranks] == [1, 2, 4] and last.rung is None
    assert first.out == Path("best/rungs/1") and second.out == Path("best/rungs/2") and last.out == Path("best")


def test_the_sizes_are_numbers_of_nodes_with_a_launcher() -> None:
    first, last = [options for options, _ in tune("1", hosts=(*SLURM, "2")).asked]
    assert first.hosts == ("--launcher", "slurm", "--nodes", "1") and first.ranks is None
    assert last.hosts == ("--launcher", "slurm", "--nodes", "2")


def test_stdout_holds_the_last_answer_alone(capsys: pytest.CaptureFixture[str]) -> None:
    tune("1", ranks=2)
    output = capsys.readouterr()
    assert output.out == "answer of None, json True\n"
    assert output.err.splitlines() == [
        "2 studies in turn, on 1 and 2 ranks; the study's budget bounds each of them, not all together",
        "rung 1 of 1: 1 rank",
        "answer of 1, json False",
        "rung 1 of 1: 1 s × ranks in study study-1",
    ]


def test_a_size_on_which_nothing_fits_is_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("1", {1: NothingFeasible("no configuration fits")}, ranks=2).sizes == [1, None]
    assert "nothing was measured on 1 rank: no configuration fits" in capsys.readouterr().err


def test_a_size_that_fails_ends_the_command_and_is_named() -> None:
    with pytest.raises(PlatformFailure) as failed:
        tune("1,2", {2: PlatformFailure("the study ended without a result", "  trial 0")}, ranks=4)
    assert failed.value.lines[:2] == ["the study ended without a result", "  trial 0"]
    assert "rung 2 of 2 (2 ranks) ended the command" in failed.value.lines[2]


@pytest.mark.parametrize(
    "end", [Interrupted("interrupted", "continue with: shardtune tune --resume"), KeyboardInterrupt()]
)
def test_who_interrupts_is_told_the_whole_command(end: BaseException) -> None:
    with pytest.raises(Interrupted) as interrupted:
        tune("1,2", {2: end}, ranks=4, target="16x4")
    command = "shardtune tune study.json --target 16x4 --rungs 1,2 --ranks 4 --json"
    assert interrupted.value.lines == [
        "interrupted; results so far are kept in .shardtune",
        f"continue with: {command}",
    ]


def test_another_command_waits_for_the_last_size() -> None:
    """The state directory is free between two studies, unless the command holds it."""

    class Neighbour(Studies):
        def run(self, state_dir: Path, spec: StudyRequest, options: TuneOptions) -> Study:
            with pytest.raises(InputError, match="in use by another"), local_stack.state_directory(OPTIONS.state_dir):
                pass
            return super().run(state_dir, spec, options)

    studies = Neighbour()
    rungs.tune((1,), replace(OPTIONS, ranks=2), studies.run)
    assert studies.sizes == [1, None]
    with local_stack.state_directory(OPTIONS.state_dir):
        pass


@pytest.mark.parametrize("as_json", [True, False])
def test_the_cost_is_that_of_every_size_and_of_all_together(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        cluster="2x8xh100", target="8x8", workload=STUDY["workload"] | {"global_batch": 512, "precision": "bf16-mixed"}
    )
    studies = tune("1", hosts=(*SLURM, "2"), cost=True, as_json=as_json)
    assert studies.asked == [] and not Path(".shardtune").exists() and not Path("best").exists()
    printed = capsys.readouterr().out
    if not as_json:
        headings = [line for line in printed.splitlines() if line.endswith(":")]
        assert headings == ["1 node:", "2 nodes:", "together:"] and printed.count("GPU-hours ") == 3
        return
    costs = json.loads(printed)
    assert [of_size["size"] for of_size in costs["sizes"]] == [1, 2]
    for quantity in ("minutes", "gpu_hours"):
        highest = [of_size["cost"][quantity]["high"] for of_size in costs["sizes"]]
        assert costs[quantity]["high"] == pytest.approx(sum(highest)) and min(highest) > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            (text, r"must list numbers")
            for text in ("", "0", "1,,2", "one", "-1", "1.5", "²", "٣", "1", "9" * 10, "1,", "+1")
        ),
        ("1,1", "names a size twice"),
        ("01,1", "names a size twice"),
        ("1,2,3,4,5", "names 5 sizes.*name 4 or fewer"),
        (",".join(map(str, range(1, 34))), "names 33 sizes"),
    ],
)
def test_what_is_no_list_of_sizes_is_rejected(text: str, words: str) -> None:
    if text == "1":
        text = "1\n2"
    with pytest.raises(InputError, match=rf"--rungs \(.*{words}"):
        rungs.parse(text)


def test_spaces_around_sizes_count_for_nothing() -> None:
    assert rungs.parse(" 2 , 1 ") == (1, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resume": True}, "--resume exclude"),
        ({"add_pairs": 3}, "--add-pairs exclude"),
        ({}, "needs --ranks"),
        ({"hosts": ("--launcher", "slurm")}, "needs --nodes"),
        ({"ranks": 2}, r"must be smaller than --ranks \(2\)"),
        ({"hosts": (*SLURM, "2")}, r"must be smaller than --nodes \(2\)"),
    ],
)
def test_options_that_exclude_each_other_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        rungs.check((1, 2), replace(OPTIONS, **changes))


@pytest.mark.parametrize(
    ("study", "changes", "words"),
    [
        ({"target": None}, {}, "needs a target"),
        ({"target": "1x1"}, {}, r"target \(1x1\) must be larger than .* --ranks \(2\)"),
        ({"target": "1x2"}, {}, r"target \(1x2\) must be larger"),
        ({"target": "8x2", "workload": STUDY["workload"] | {"global_batch": 24}}, {}, r"global_batch \(24\)"),
        ({"target": "1x8"}, {"hosts": (*SLURM, "2"), "ranks": None}, r"larger than .* --nodes \(2\)"),
        ({"target": "2"}, {"hosts": (*SLURM, "2"), "ranks": None}, r"larger than .* --nodes \(2\)"),
        (
            {"cluster": "4x8xh100"},
            {"hosts": (*SLURM, "2"), "ranks": None},
            r"--nodes \(2\) must be the size .*give --nodes 4",
        ),
        (
            {"cluster": "2x8xh100", "target": "2x8", "workload": STUDY["workload"] | {"global_batch": 512}},
            {"hosts": (*SLURM, "2"), "ranks": None},
            r"target \(2 × 8 GPUs\) is what the cluster has",
        ),
        ({"cluster": "8xh100"}, {}, r"--ranks \(2\) must be the size .*give --ranks 8"),
        ({"cluster": "8xnothing"}, {}, "nothing"),
    ],
)
def test_what_the_last_size_cannot_do_is_said_before_the_first_one_runs(
    study: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    write(**study)
    studies = Studies()
    with pytest.raises(CliError, match=words):
        rungs.tune((1,), replace(OPTIONS, **({"ranks": 2} | changes)), studies.run)
    assert studies.asked == [] and not Path(".shardtune").exists()


def test_a_folder_that_a_smaller_size_cannot_write_is_named_before_anything_runs() -> None:
    Path("best").mkdir()
    Path("best/rungs").write_text("a file of the user")
    with pytest.raises(InputError, match=r"--out \(best/rungs/1\) cannot be written"):
        tune("1", ranks=2)
    assert not Path(".shardtune").exists()


@pytest.mark.parametrize("target", ["8", "8x2"])
def test_a_target_of_nodes_alone_is_the_same_for_every_size(target: str) -> None:
    """The GPUs of a node are those of the whole study: a rung of one rank would mean nodes of one."""
    write(target=target)
    assert [spec.target.short_form for _, spec in tune("1", ranks=2).asked if spec.target] == ["8x2", "8x2"]


def test_a_baseline_that_needs_more_ranks_is_left_out_where_it_is_not_possible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    baseline = {"strategy": {"kind": "fsdp2", "dp_shard": 2}}
    write(baseline=baseline)
    (_, first), (_, last) = tune("1", ranks=2).asked
    assert first.baseline is None and last.baseline is not None
    assert first.workload.precision == last.workload.precision
    assert "the baseline is left out on 1 rank: " in capsys.readouterr().err


@pytest.mark.parametrize("stated", [{}, {"sustained_run_s": 30.0}])
def test_only_the_last_size_makes_a_sustained_run(stated: dict[str, float]) -> None:
    write(budget={"max_trials": 3} | stated)
    (_, first), (_, last) = tune("1", ranks=2).asked
    assert first.budget.sustained_seconds("cuda") == 0.0 and last.budget.sustained_run_s == stated.get(
        "sustained_run_s"
    )
    assert first.budget.max_trials == last.budget.max_trials == 3


def test_a_baseline_that_every_size_has_is_kept() -> None:
    write(baseline={"strategy": {"kind": "ddp"}})
    assert all(spec.baseline is not None for _, spec in tune("1", ranks=2).asked)


@pytest.mark.parametrize(
    ("cluster", "hosts", "ranks", "smaller"),
    [
        ("2x8xh100", (*SLURM, "2"), None, "1x8xH100-SXM5-80GB"),
        ("8xh100", (), 8, "1x1xH100-SXM5-80GB"),
        ("local", (*SLURM, "2"), None, "local"),
        (CPU.model_copy(update={"nodes": 2}), (*SLURM, "2"), None, CPU.model_copy(update={"nodes": 1})),
        (CPU, (), 2, CPU.model_copy(update={"nodes": 1, "gpus_per_node": 1})),
    ],
)
def test_a_smaller_size_has_fewer_of_the_studys_gpus(
    cluster: Any, hosts: tuple[str, ...], ranks: int | None, smaller: Any
) -> None:
    spec = study_file.validate_study(
        STUDY | {"target": "8x8", "workload": STUDY["workload"] | {"global_batch": 512}}, Path()
    )  # type: ignore[operator]
    whole = replace(OPTIONS, rungs=(1,), hosts=hosts, ranks=ranks)
    spec = smaller_studies.with_complete_target(spec.model_copy(update={"cluster": cluster}), whole)
    on_size = smaller_studies.options_on(1, whole)
    assert smaller_studies.study_on(1, spec, on_size, pytest.fail).cluster == smaller


def test_as_many_gpus_of_another_kind_are_a_target() -> None:
    values = STUDY | {"target": "1x8xh200", "cluster": "8xh100", "workload": STUDY["workload"] | {"global_batch": 512}}
    whole = replace(OPTIONS, rungs=(1,), hosts=(), ranks=8)
    spec = smaller_studies.with_complete_target(study_file.validate_study(values, Path()), whole)
    assert spec.target is not None and spec.target.gpu == "h200"
    with pytest.raises(InputError, match=r"target \(1x8\) must be larger"):
        smaller_studies.with_complete_target(study_file.validate_study(values | {"target": "1x8"}, Path()), whole)
