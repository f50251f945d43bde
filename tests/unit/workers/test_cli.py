"""`python -m shardtune.workers` before anything is started: what it accepts, and how it rejects."""

import pytest

from shardtune.api_schemas.machines.hardware import CollectiveTime, HardwareReport, MeasuredHardware
from shardtune.api_schemas.trials.failures import Failure, FailureKind
from shardtune.api_schemas.trials.leases import ModelSummaryTask
from shardtune.api_schemas.trials.measurements import CompiledFrames
from shardtune.workers.__main__ import main
from shardtune.workers.commands import human_output, split
from shardtune.workers.commands.run_trial import read_task
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.machine.device_lock import hold_locks
from shardtune.workers.machine.inventory import Gpus
from shardtune.workers.partitions.divide import Cores, divide
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, measurement


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


def test_only_a_trial_can_be_traced(tmp_path, capsys, task):
    path = tmp_path / "model_summary.json"
    path.write_text(ModelSummaryTask(model=task.model, workload=task.workload).model_dump_json())
    assert main(["run-trial", str(path), "--trace"]) == 2
    assert "--trace: kind (model_summary) must be trial" in capsys.readouterr().err


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
    with hold_locks(tmp_path / "work", []):
        assert main(["run-trial", str(path), "--work-dir", str(tmp_path / "work")]) == 1
    assert "in use by another" in capsys.readouterr().err


def test_a_measurement_is_printed_as_a_table_with_units_and_a_failure_without_its_traceback():
    text = human_output.outcome(measurement(1234.0, peak_gib=0.05))
    assert "speed        1,234 tokens/s/GPU" in text and "51.2 MiB allocated" in text and "{" not in text
    failed = Failure(kind=FailureKind.CRASH, message="no such layer", traceback="Traceback of it", rank=1)
    assert human_output.outcome(failed).splitlines() == ["failed  crash", "why     no such layer", "rank    1"]


def test_a_compiled_run_says_what_was_compiled():
    compiled = CompiledFrames(frames=3, recompilations=2, graph_breaks=1, while_timed=1)
    text = human_output.outcome(measurement(1234.0).model_copy(update={"compiled": compiled}))
    assert "compiled     3 functions, 2 of them again; 1 graph break; 1 during the timed steps" in text
    assert "compiled" not in human_output.outcome(measurement(1234.0))


def test_the_rates_of_a_machine_are_printed_as_a_table_with_units():
    rates = MeasuredHardware(
        bf16_flops=2e11, fp32_flops=9e10, copy_bytes_per_s=1.2e10, launch_s=1e-5,
        collectives=(CollectiveTime(operation="all_reduce", bytes=1 << 20, seconds=0.002),),
    )  # fmt: skip
    text = human_output.hardware(HardwareReport(cluster=CLUSTER, fingerprint=FINGERPRINT, measured=rates))
    for words in ("200 GFLOP/s", "12.0 GB/s", "10 µs", "all reduce", "1.00 MiB in 2.00 ms"):
        assert words in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--nodes", "2"], "nodes (2) must be 1 with --launcher local"),
        (["--meet-ports", "80-90"], "meet_ports (80-90) must be FIRST-LAST"),
        (["--meet-ports", "２9500-29600"], "meet_ports (２9500-29600) must be FIRST-LAST"),
        (["--launcher", "slurm"], "launcher (slurm) needs a Slurm job"),
        (["--launcher", "ray"], "nodes (missing) must say how many hosts"),
    ],
)
def test_hosts_that_cannot_be_are_exit_code_2(tmp_path, capsys, monkeypatch, options, says):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["detect", "--work-dir", str(tmp_path), *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--split", "3"], "split (3) must name sizes that divide the 2 CPU ranks of this machine, and 3 does not"),
        (["--split", "one"], "split (one) must be numbers of ranks separated by commas, such as 1,8"),
        (["--split", "0"], "split (0) must be numbers"),
        (["--split", "１"], "split (１) must be numbers"),
        (["--split", "1,1"], "split (1,1) names a size twice, whose workers would have one name"),
        (["--split", "1,2", "--launcher", "slurm"], "split (1,2) divides one machine, and --launcher slurm"),
    ],
)
def test_a_machine_that_cannot_be_divided_so_is_exit_code_2(tmp_path, capsys, monkeypatch, options, says):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--work-dir", str(tmp_path), *options]) == 2
    assert says in capsys.readouterr().err


def test_workers_of_one_machine_have_names_of_their_own_however_long_the_machine_s_is():
    cores = Cores(range(4), {})
    divisions = divide("0c5b1a7e94d2f386", Gpus(driver=None, devices=()), 4, [1, 2], cores)
    for name in ("node-3", "n" * 200):
        names = [split.worker_name(WorkerSettings(name=name), division) for division in divisions]
        assert len(set(names)) == 6 and max(map(len, names)) <= 200 and names[0].endswith("/1x0")
