"""What NVML says decides whether work is taken and whether a run counts."""

import json
import os
import sys
import threading
import time
from itertools import islice
from pathlib import Path

import pytest

from shardtune.api_schemas.conditions import Conditions
from shardtune.api_schemas.failures import Failure
from shardtune.api_schemas.hardware import Cluster
from shardtune.api_schemas.measurements import Measurement, Memory
from shardtune.workers.machine import nvml_watch
from shardtune.workers.machine.conditions import judged, straggler
from shardtune.workers.machine.device_health import DeviceLook, Fault, Look, broken, fault, occupied, seen
from shardtune.workers.machine.device_watch import DevicesUnfit, DeviceWatch
from shardtune.workers.machine.host_load import HostLook, throttled_s
from tests.support import fake_nvml
from tests.support.fake_nvml import GIB, FakeNvml
from tests.support.worker_fakes import make_task

WELL = {"used": GIB, "pids": [], "reasons": 0, "ecc": 0, "remapped": (0, 0, 0, 0)}
CAPPED, THERMAL, POWER_BRAKE = 0x04, 0x40, 0x80


def look_at(events=(), after=0, monkeypatch=None, **changes):
    nvml = FakeNvml({"GPU-1": WELL | changes}, events)
    return Look.model_validate(list(islice(nvml_watch.Watch(["GPU-1"], nvml).looks(), after + 1))[-1])


def over_a_run(*changes):
    return [Look(at_s=second, devices=look_at(**change).devices) for second, change in enumerate(changes)]


def test_a_device_that_answers_little_is_still_seen():
    nvml = FakeNvml({"GPU-1": {"used": GIB}})
    device = Look.model_validate(next(nvml_watch.Watch(["GPU-1"], nvml).looks())).devices[0]
    assert (device.memory_used_bytes, device.processes, device.clock_reasons) == (GIB, None, None)


def test_driver_errors_are_remembered(monkeypatch):
    monkeypatch.setattr(nvml_watch, "_PERIOD_MS", 20)
    later = look_at(events=[("GPU-1", 31), ("GPU-1", 79)], after=1)
    assert later.devices[0].xids == [31, 79]
    assert "Xid 79" in broken(later)[0]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({"remap_failed": True}, "replace it"),
        ({"remap_pending": True}, "reset it"),
        ({"xids": [48]}, "Xid 48"),
        ({"lost": "GPU is lost"}, "GPU is lost"),
    ],
)
def test_a_broken_device_is_named_with_what_to_do(device, words):
    (found,) = broken(Look(at_s=0, devices=[DeviceLook(uuid="GPU-1", **device)]))
    assert "GPU-1" in found and words in found


@pytest.mark.parametrize("xid", [13, 31, 43, 45])
def test_what_a_faulty_program_raises_does_not_break_the_device(xid):
    assert broken(Look(at_s=0, devices=[DeviceLook(uuid="GPU-1", xids=[xid])])) == []
    assert fault(seen(over_a_run({}, {}), ())) is None


def test_a_device_is_occupied_by_other_processes_or_by_what_a_run_left():
    assert "4711 (1.00 GiB)" in occupied(look_at(pids=[4711]), {})[0]
    assert "2.00 GiB more" in occupied(look_at(used=3 * GIB), {"GPU-1": GIB})[0]
    assert occupied(look_at(), {"GPU-1": GIB}) == []


def test_throttling_takes_the_speed_away_but_excuses_no_failure():
    devices = seen(over_a_run({}, {"reasons": THERMAL}, {"reasons": POWER_BRAKE | CAPPED}, {}), ())
    assert devices[0].throttled_share == pytest.approx(2 / 3)
    assert devices[0].throttle_reasons == ("hardware thermal slowdown", "hardware power brake")
    found = fault(devices)
    assert found is not None and not found.excuses_failures and "67%" in found.message


def test_the_power_cap_of_a_full_load_is_recorded_and_no_fault():
    devices = seen(over_a_run({}, {"reasons": CAPPED}, {"reasons": CAPPED}), ())
    assert devices[0].power_capped_share == 1
    assert fault(devices) is None


def test_memory_errors_and_strangers_in_a_run_excuse_everything():
    ecc = fault(seen(over_a_run({"ecc": 2}, {"ecc": 3}), ()))
    assert ecc == Fault("GPU GPU-1 had 1 uncorrected memory errors in the run", True)
    stranger = fault(seen(over_a_run({}, {"pids": [4711, 12]}), {4711}))
    assert stranger is not None and stranger.excuses_failures and "4711" in stranger.message


def test_a_slow_gpu_is_a_straggler_and_a_slow_cpu_rank_is_not():
    gpus = Cluster(device="cuda", gpu="NVIDIA H200", gpus_per_node=3, memory_gib=140, host_memory_gib=100)
    found = straggler(gpus, (0.010, 0.014, 0.010))
    assert found is not None and "rank 1" in found.message
    assert straggler(gpus, (0.010, 0.011, 0.010)) is None
    assert straggler(make_task().cluster, (0.010, 0.014)) is None


BAD = Conditions(devices=seen(over_a_run({}, {"pids": [4711]}), {4711}))


def measured(**changes):
    values = {
        "tokens_per_s_per_gpu": 512.0,
        "step_time_s": 1.0,
        "step_time_half_width_s": 0.0,
        "memory": Memory(peak_allocated_gib=1),
        "wrap_time_s": 0.1,
        "warmup_steps": 1,
        "measured_steps": 6,
        "window_step_times_s": (1.0, 1.0),
        "trajectory": (),
        "losses": (),
        "gradient_accumulation": 1,
        "elapsed_s": 10.0,
    }
    return Measurement(**values | changes)


def test_out_of_memory_beside_a_stranger_is_not_learned_as_the_configurations_fault():
    result = judged(make_task(), Failure(kind="oom", message="tried to allocate 3 GiB"), BAD, None)
    assert isinstance(result, Failure)
    assert result.kind == "device" and not result.is_infeasible
    assert result.conditions == BAD


def test_a_run_on_a_good_device_keeps_its_result_and_says_what_was_seen():
    good = Conditions(devices=seen(over_a_run({}, {"reasons": CAPPED}), ()))
    result = judged(make_task(), measured(), good, None)
    assert isinstance(result, Measurement)
    assert (result.suspect, result.conditions) == (None, good)
    oom = judged(make_task(), Failure(kind="oom", message="3 GiB"), good, None)
    assert isinstance(oom, Failure) and oom.kind == "oom" and oom.conditions == good


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mfu": 1.3}, "MFU of 130%"),
        ({"tokens_per_s_per_gpu": 4000.0}, "at most 3,333"),
        ({"window_step_times_s": (9.0, 9.0)}, "in a run that took 10.00 s"),
        ({"window_step_times_s": (1.0, 0.0)}, "a timed window of 0.0 s"),
        ({"data_wait_share": 0.4}, "40% of the timed windows"),
        ({"mfu": 0.6, "tokens_per_s_per_gpu": 3000.0, "data_wait_share": 0.1}, None),
    ],
)
def test_numbers_that_cannot_be_true_are_suspect(changes, words):
    result = judged(make_task(forward_flops_per_token=1e9), measured(**changes), Conditions(), peak_flops=1e13)
    assert isinstance(result, Measurement)
    assert words is None if result.suspect is None else words is not None and words in result.suspect


@pytest.fixture
def watch(tmp_path):
    """A watch over a file of answers; (watch, set), where set(**changes) changes what the device says."""
    file = tmp_path / "nvml.json"

    def set_(**changes):
        scratch = tmp_path / "next"
        scratch.write_text(json.dumps({"GPU-1": WELL | changes}))
        scratch.replace(file)

    command = (sys.executable, str(Path(fake_nvml.__file__)), str(file))
    made = DeviceWatch(["GPU-1"], tmp_path, command, patience_s=3.0)
    set_()
    made.start()
    yield made, set_
    made.close()


def test_work_waits_until_the_devices_are_free(watch, tmp_path):
    devices, set_ = watch
    devices.require_fit(lambda: False)
    set_(pids=[os.getpid()])
    waited = threading.Timer(0.5, set_)
    devices_are_taken(devices)
    waited.start()
    devices.require_fit(lambda: False)
    assert not waited.is_alive()
    assert not (tmp_path / "doing.txt").exists()


def devices_are_taken(devices):
    while not any(device.processes for look in devices.between(0, float("inf"))[-1:] for device in look.devices):
        time.sleep(0.01)


def test_devices_that_stay_occupied_are_given_up_with_the_reason(watch):
    devices, set_ = watch
    devices._patience_s = 0.5
    set_(pids=[os.getpid()])
    devices_are_taken(devices)
    with pytest.raises(DevicesUnfit, match=rf"process {os.getpid()} .*CUDA_VISIBLE_DEVICES"):
        devices.require_fit(lambda: False)


def test_memory_has_to_come_back_to_its_level_before_the_first_run(watch):
    devices, set_ = watch
    devices.require_fit(lambda: False)
    devices._patience_s = 0.5
    set_(used=5 * GIB)
    with pytest.raises(DevicesUnfit, match=r"4\.00 GiB more"):
        while True:
            devices.require_fit(lambda: False)


def test_what_other_programs_used_is_what_the_ranks_did_not():
    before, after = HostLook(100.0, 50.0, 8.0, 1.0), HostLook(110.0, 65.0, 2.0, 1.5)
    found = before.until(after, [4.0, 6.0])
    assert (found.foreign_cpu_cores, found.memory_available_gib, found.cpu_throttled_s) == (0.5, 8.0, 0.5)
    assert before.until(after, [4.0, None]).foreign_cpu_cores is None


@pytest.mark.parametrize(
    ("line", "path", "text"),
    [
        ("0::/job/7", "job/7/cpu.stat", "nr_throttled 3\nthrottled_usec 1500000\n"),
        ("4:cpu,cpuacct:/job/7", "cpu/job/7/cpu.stat", "nr_throttled 3\nthrottled_time 1500000000\n"),
    ],
)
def test_the_control_groups_cpu_limit_is_seen(tmp_path, line, path, text):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line + "\n")
    assert throttled_s(tmp_path / "cgroup", tmp_path / "proc") is None
    (tmp_path / "cgroup" / path).parent.mkdir(parents=True)
    (tmp_path / "cgroup" / path).write_text(text)
    assert throttled_s(tmp_path / "cgroup", tmp_path / "proc") == 1.5
