"""The command that is named next is one that works: with what the worker needs again, as a shell reads it."""

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, TrialConfig
from shardtune.api_schemas.studies.budget import Budget
from shardtune.api_schemas.studies.exports import Export
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.studies.study_request import StudyRequest, StudySpec
from shardtune.api_schemas.studies.study_result import Contender, StudyResult, Verdict
from shardtune.api_schemas.studies.study_state import StudyState
from shardtune.api_schemas.studies.verdicts import BusyMachine, OpenVerdict
from shardtune.api_schemas.training.adapters import Lora
from shardtune.api_schemas.training.models import ModelSpec, preset
from shardtune.api_schemas.training.workload import Workload
from shardtune.service.cli import study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.tune import answer, continuation, early_checks, job, local_devices, next_commands
from shardtune.service.cli.tune.local_devices import LocalDevices
from shardtune.service.cli.tune.options import TuneOptions
from shardtune.service.cli.tune.quiet_options import check_wait, with_default_minutes
from shardtune.service.wording.answers.verdict_line import verdict_text

ALLOWED = ("--allow-script", "mine=train.py --data 'a b'", "--allow-model", "lora")
AGAIN = """--allow-script 'mine=train.py --data '"'"'a b'"'"'' --allow-model lora"""


def options(**changes: Any) -> TuneOptions:
    arguments: dict[str, Any] = {
        "study": Path("study.json"), "ranks": None, "max_trials": None, "memory_gib": None, "resume": False,
        "state_dir": Path(".shardtune"), "out": Path("best"), "as_json": False,
    }  # fmt: skip
    return TuneOptions(**(arguments | changes))


def undecided(more_pairs: int | None, max_pairs: int = 24) -> tuple[Study, StudyResult]:
    spec = StudySpec(
        model=preset("llama-tiny"),
        workload=Workload(sequence_length=64, global_batch=16),
        budget=Budget(max_pairs=max_pairs),
    )
    study = Study(
        study_id="study-1", state="complete", phase="done", spec=spec, trials={}, rejected=0, gpu_seconds=1,
        cluster=Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    config = TrialConfig(strategy=DdpConfig())
    best = Contender(
        trial_number=0, config=config, description="x", tokens_per_s_per_gpu=1, peak_allocated_gib=None,
        peak_reserved_gib=None, runs=1,
    )  # fmt: skip
    open_verdict = OpenVerdict(pairs=7, won_pairs=5, more_pairs=more_pairs)
    result = StudyResult(best=best, baseline=best, speedup=None, verdict=Verdict.UNDECIDED, undecided=open_verdict)
    return study, result


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
    assert result.undecided is not None and not result.undecided.disturbed_runs
    for disturbed_runs, advice in ((0, "keep the baseline"), (3, "while nothing else uses this machine")):
        open_verdict = result.undecided.model_copy(update={"disturbed_runs": disturbed_runs})
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


@pytest.mark.parametrize("flag", [{"resume": True}, {"add_pairs": 6}])
@pytest.mark.parametrize("option", [{"memory_gib": 2.0}, {"max_trials": 3}, {"study": Path("study.json")}])
def test_a_continued_study_refuses_every_option_that_it_would_ignore(
    tmp_path: Path, flag: dict[str, Any], option: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"would change the study .* leave it out"):
        job.tune(options(**{"study": None, "state_dir": tmp_path / "state"} | flag | option))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("device", "offered", "is_rejected"), [
    ("cpu", 2, False), ("cpu", 4, True), ("cpu", None, False), ("cuda", 4, False), ("cuda", 1, True),
])  # fmt: skip
def test_ranks_that_a_continued_study_does_not_have_are_rejected(
    device: str, offered: int | None, is_rejected: bool
) -> None:
    study, _ = undecided(None)
    gpu = "H100-SXM5-80GB" if device == "cuda" else "cpu"
    study = study.model_copy(
        update={
            "state": StudyState.RUNNING,
            "cluster": Cluster(device=device, gpu=gpu, gpus_per_node=2, memory_gib=4, host_memory_gib=8),  # type: ignore[arg-type]
        }
    )

    class Client:
        def studies(self) -> list[Study]:
            return [study]

    resumed = options(study=None, resume=True, ranks=offered)
    if is_rejected:
        with pytest.raises(InputError, match=r"--ranks \(.\) would change the study"):
            continuation.find(Client(), resumed)  # type: ignore[arg-type]
    else:
        assert continuation.find(Client(), resumed) is study  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hosts", "launcher", "error"),
    [
        ((), None, r"--launcher \(missing\) offers 1 of the 2 nodes of the study that --resume continues; add"),
        (("--launcher", "slurm", "--nodes", "1"), None, r"--nodes \(1\) offers 1 of the 2 nodes .* leave it out"),
        (("--launcher", "local"), None, r"--launcher \(local\) offers 1 of the 2 nodes .* add --launcher slurm or ray"),
        (("--launcher", "local"), "slurm", r"--launcher \(local\) offers 1 of the 2 nodes"),
        ((), "local", r"--launcher \(local\) offers 1 of the 2 nodes"),
        ((), "", r"--launcher \(missing\) offers 1 of the 2 nodes"),
        (("--launcher", "slurm"), "local", None),
        (("--launcher", "slurm"), None, None),
        (("--launcher", "slurm", "--nodes", "4"), None, None),
        ((), "slurm", None),
    ],
)
def test_nodes_that_a_continued_study_needs_are_offered_or_named(
    hosts: tuple[str, ...], launcher: str | None, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDTUNE_DATABASE_URL", raising=False)
    monkeypatch.delenv("SHARDTUNE_WORKER_LAUNCHER", raising=False)
    if launcher is not None:
        monkeypatch.setenv("SHARDTUNE_WORKER_LAUNCHER", launcher)
    study, _ = undecided(None)
    cluster = study.cluster.model_copy(update={"nodes": 2})
    study = study.model_copy(update={"state": StudyState.RUNNING, "cluster": cluster})

    class Client:
        def studies(self) -> list[Study]:
            return [study]

    resumed = options(study=None, resume=True, hosts=hosts)
    if error is None:
        assert continuation.find(Client(), resumed) is study  # type: ignore[arg-type]
        return
    with pytest.raises(InputError, match=error):
        continuation.find(Client(), resumed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hosts", "launcher", "worker"),
    [
        ((), None, ()),
        ((), "local", ()),
        ((), "slurm", ("--nodes", "2")),
        (("--launcher", "local"), "slurm", ("--launcher", "local")),
        (("--launcher", "slurm"), None, ("--launcher", "slurm", "--nodes", "2")),
        (("--launcher", "slurm", "--nodes", "4"), None, ("--launcher", "slurm", "--nodes", "4")),
    ],
)
def test_a_worker_over_hosts_gets_the_studys_number_of_nodes(
    hosts: tuple[str, ...], launcher: str | None, worker: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDTUNE_WORKER_LAUNCHER", raising=False)
    if launcher is not None:
        monkeypatch.setenv("SHARDTUNE_WORKER_LAUNCHER", launcher)
    cluster = Cluster(device="cpu", nodes=2, gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    assert job.host_options(cluster, hosts) == worker


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


def rejection(model: ModelSpec, *allowed: str) -> str:
    with pytest.raises(InputError) as rejected:
        early_checks.check_own_code(model, allowed)
    return str(rejected.value)


def test_code_that_no_option_allows_is_rejected_with_the_option_that_would() -> None:
    script, point = ModelSpec(name="x", script="mine"), ModelSpec(name="x", entry_point="lora")
    assert rejection(script).endswith("there is no --allow-script; add --allow-script mine=/path/to/train.py")
    stated_rejection = rejection(script, "--allow-script", "mein=train.py --x 1")
    assert stated_rejection.startswith("model.script ('mine') is not allowed by this command line: only mein")
    assert stated_rejection.endswith("did you mean --allow-script 'mine=train.py --x 1'?")
    assert rejection(point, "--allow-model", "lora2").endswith("did you mean --allow-model lora?")
    for model in (script, point, preset("llama-tiny")):
        early_checks.check_own_code(model, ALLOWED)


def test_code_that_the_environment_may_allow_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDTUNE_WORKER_ALLOWED_SCRIPTS", "mine=train.py")
    model = ModelSpec(name="x", script="mine")
    early_checks.check_own_code(model, ())
    assert "only other" in rejection(model, "--allow-script", "other=train.py")


@pytest.mark.parametrize("hosts", [(), ("--launcher", "slurm")])
def test_a_misspelt_script_is_rejected_before_anything_is_started(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    path = tmp_path / "study.json"
    model = {"script": "mine", "config": {}}
    path.write_text(json.dumps({"model": model, "workload": {"sequence_length": 64, "global_batch": 16}}))
    input_options = options(
        study=path, state_dir=tmp_path / "state", allowed=("--allow-script", "mein=t.py"), hosts=hosts
    )
    with pytest.raises(InputError, match="did you mean"):
        job.tune(input_options)
    assert not (tmp_path / "state").exists()


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


class StoredStudies:
    """A service that stores a study and, if `later` is given, a newer one with an answer."""

    def __init__(self, study: Study, *later: Study) -> None:
        self._studies = [*later, study]

    def studies(self) -> list[Study]:
        return self._studies


def printed_again(rests_on: str = "pairs", service: str | None = None, *, is_newest: bool = True) -> list[str]:
    """Rows below the answer of a study whose machine was too busy, as `best` and `studies` print them."""
    study, result = undecided(None)
    busy = BusyMachine(rests_on=rests_on, runs=18, disturbed_runs=18, uneven_pairs=0, missing_runs=2)
    result = result.model_copy(update={"verdict": Verdict.TOO_BUSY, "too_busy": busy, "undecided": None})
    study = study.model_copy(update={"result": result})
    later = [] if is_newest else [study.model_copy(update={"study_id": "study-2"})]
    client: Any = StoredStudies(study, *later)
    return next_commands.rows(client, study, result, service, Path("state"))


def test_an_answer_that_is_printed_again_names_the_command_of_tune() -> None:
    assert printed_again() == [
        "files       shardtune export study-1 --out best --state-dir state",
        "to decide   shardtune tune --add-pairs 1 --wait-for-quiet 30 --state-dir state (waits for a quiet machine, 30 "
        "minutes in all; then it runs even if busy)",
    ]
    assert "shardtune tune FILE --wait-for-quiet 30 --state-dir state" in printed_again("search")[1]


def test_only_the_newest_study_is_extended_by_tune() -> None:
    row = printed_again(is_newest=False)[1]
    assert "shardtune studies extend study-1 --add-pairs 1 --wait-for-quiet-s 1800, while" in row
    assert row.endswith("`shardtune serve --state-dir state` runs")


def test_the_study_of_a_service_is_extended_there() -> None:
    files, row = printed_again(service="http://gpu:8470")
    assert files.endswith("shardtune export study-1 --out best --service http://gpu:8470")
    assert row.endswith("extend study-1 --add-pairs 1 --wait-for-quiet-s 1800 --service http://gpu:8470")
    assert "studies clone study-1 --service http://gpu:8470, once" in printed_again("search", "http://gpu:8470")[1]


@pytest.mark.parametrize("state", [StudyState.RUNNING, StudyState.WAITING])
def test_a_study_that_is_being_extended_has_no_next_command(state: StudyState) -> None:
    study, result = undecided(3)
    client: Any = StoredStudies(study)
    assert next_commands.to_decide(client, study, result, None, Path("state")) is not None
    extended = study.model_copy(update={"state": state})
    assert next_commands.to_decide(client, extended, result, None, Path("state")) is None


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        (["x.json", "--wait-for-quiet"], ["x.json", "--wait-for-quiet", "30"]),
        (["--wait-for-quiet", "x.json"], ["--wait-for-quiet", "30", "x.json"]),
        (["--wait-for-quiet", "--json"], ["--wait-for-quiet", "30", "--json"]),
        (["--wait-for-quiet", "5", "x.json"], ["--wait-for-quiet", "5", "x.json"]),
        (["--wait-for-quiet=5"], ["--wait-for-quiet=5"]),
        (["--wait-for-quiet", "-3"], ["--wait-for-quiet", "-3"]),
        (["x.json"], ["x.json"]),
    ],
)
def test_the_wait_has_a_default_where_no_number_follows(given: list[str], completed: list[str]) -> None:
    assert with_default_minutes(given) == completed


@pytest.mark.parametrize("minutes", [0, -3, 1e6, float("nan"), float("inf")])
def test_a_wait_that_is_no_time_is_rejected_with_the_remedy(minutes: float) -> None:
    with pytest.raises(InputError, match=r"--wait-for-quiet \(.*\) must be above 0 and at most 10080 minutes"):
        check_wait(minutes, resume=False)


def test_a_resumed_study_keeps_its_own_wait() -> None:
    check_wait(5, resume=False)
    with pytest.raises(InputError, match="--resume exclude each other"):
        check_wait(5, resume=True)


def test_an_interrupted_wait_is_named_again() -> None:
    interrupted = options(add_pairs=3, study=None, wait_for_quiet_min=5).after_interrupt(has_begun=False)
    assert interrupted[1].endswith("shardtune tune --add-pairs 3 --wait-for-quiet 5")


H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("cluster", "devices", "reason"),
    [
        ("8xh100", LocalDevices(has_driver=False, gpus=()), "it has no NVIDIA GPU"),
        ("8xh100", LocalDevices(has_driver=True, gpus=(H100,) * 4), "it has 4 GPUs"),
        ("8xh100", LocalDevices(has_driver=True, gpus=(A100,) * 8), f"it has {A100}"),
        ("2x8xh100", LocalDevices(has_driver=True, gpus=(H100,) * 8), "it has 2 hosts, and tune uses one"),
        ("8xh100", LocalDevices(has_driver=True, gpus=(H100,) * 8), None),
        ("4xh100", LocalDevices(has_driver=True, gpus=(H100,) * 8), None),
        ("8xh100", LocalDevices(has_driver=True, gpus=None), None),
    ],
)
def test_hardware_that_is_not_here_is_rejected_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, cluster: str, devices: LocalDevices, reason: str | None
) -> None:
    monkeypatch.delenv("SHARDTUNE_DATABASE_URL", raising=False)
    workload = {"sequence_length": 64, "global_batch": 16}
    spec = StudyRequest.model_validate({"model": "llama-tiny", "workload": workload, "cluster": cluster})
    if reason is None:
        early_checks.check_hardware(spec, (), devices)
    else:
        with pytest.raises(InputError, match=f"cluster \\({cluster}\\) cannot run on this machine: {reason}"):
            early_checks.check_hardware(spec, (), devices)
    early_checks.check_hardware(spec, ("--launcher", "ray"), devices)
    monkeypatch.setenv("SHARDTUNE_DATABASE_URL", "postgresql://db/shared")
    early_checks.check_hardware(spec, (), devices)


def test_the_drivers_list_names_the_gpus(tmp_path: Path) -> None:
    assert local_devices.detect([tmp_path / "nvidiactl"], tmp_path) == LocalDevices(has_driver=False, gpus=())
    (tmp_path / "nvidiactl").touch()
    assert local_devices.detect([tmp_path / "nvidiactl"], tmp_path / "none").gpus is None
    folder = tmp_path / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"Model: \t\t {H100}\nIRQ:   \t\t 144\n")
    assert local_devices.detect([tmp_path / "nvidiactl"], tmp_path / "gpus").gpus == (H100,)
