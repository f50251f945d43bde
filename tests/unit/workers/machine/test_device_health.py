"""NVML's readings decide whether work is taken and whether a run counts."""

import os
import sys
import threading
import time
from types import SimpleNamespace

import pynvml
import pytest

from shardtune.api_schemas.machines.conditions import Conditions, NodeConditions
from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.trials.failures import Failure
from shardtune.api_schemas.trials.measurements import Measurement, Memory
from shardtune.workers.machine import nvml_watch
from shardtune.workers.machine.conditions import straggler, with_conditions
from shardtune.workers.machine.device_health import (
    DeviceObservation,
    Fault,
    GpuObservation,
    broken_devices,
    find_fault,
    occupied_devices,
    summarize_devices,
)
from shardtune.workers.machine.device_watch import DevicesUnfit, DeviceWatch
from shardtune.workers.machine.host_load import HostCounters, throttled_s
from tests.support.nvml.fake_driver import GIB, GPU_IS_LOST, H100, FakeDriver
from tests.support.workers.worker_fakes import make_task

CAPPED, SOFTWARE_THERMAL, THERMAL, POWER_BRAKE = 0x04, 0x20, 0x40, 0x80


def look_at(pids=(), at_s=0.0, **changes):
    processes = [{"pid": pid, "memory_bytes": GIB} for pid in pids]
    device = {
        "uuid": "GPU-1",
        "memory_used_bytes": GIB,
        "processes": processes,
        "clock_reasons": 0,
        "uncorrected_ecc": 0,
    }
    return GpuObservation.model_validate({"at_s": at_s, "devices": [device | changes]})


def over_a_run(*changes):
    return [look_at(at_s=second, **change) for second, change in enumerate(changes)]


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({"remap_failed": True}, "replace it"),
        ({"remap_pending": True}, "reset it"),
        ({"xids": [48]}, "Xid 48"),
        ({"lost": "GPU is lost"}, "GPU is lost"),
        *(({"xids": [xid]}, f"Xid {xid}") for xid in (143, 150, 151, 156, 158, 171, 172)),
        ({"recovery_action": 1}, "nvidia-smi --gpu-reset"),
        ({"recovery_action": 2}, "reboot"),
        ({"recovery_action": 99}, "recovery action 99: look at `nvidia-smi -q`"),
    ],
)
def test_a_broken_device_is_named_with_what_to_do(device, words):
    (actual,) = broken_devices(GpuObservation(at_s=0, devices=[DeviceObservation(uuid="GPU-1", **device)]))
    assert "GPU-1" in actual and words in actual


def test_the_error_of_a_gpu_that_fell_off_the_bus_is_recorded_though_it_tells_no_uuid(monkeypatch):
    """The watch ended there, and the run's crash was taken for the configuration's."""
    events = [SimpleNamespace(device="GPU-1", eventData=79)]

    def wait(*_):
        if events:
            return events.pop()
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    def uuid_of(handle):
        if handle == "GPU-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return handle

    for name, function in (
        ("nvmlDeviceGetHandleByUUID", lambda uuid: uuid),
        ("nvmlEventSetCreate", lambda: "events"),
        ("nvmlDeviceRegisterEvents", lambda *_: None),
        ("nvmlEventSetWait_v2", wait),
        ("nvmlDeviceGetUUID", uuid_of),
    ):
        monkeypatch.setattr(pynvml, name, function)
    watch = nvml_watch.Watch(["GPU-0", "GPU-1"])
    looks = watch.observations()
    next(looks)
    devices = {device["uuid"]: device["xids"] for device in next(looks)["devices"]}
    assert devices == {"GPU-0": [], "GPU-1": [79]}


def test_throttling_is_seen_with_a_driver_that_knows_its_query_by_the_former_name(monkeypatch):
    def missing(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def lost(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(used=GIB))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda _: THERMAL)
    for query, reasons in ((missing, THERMAL), (lost, None)):
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", query)
        (device,) = next(nvml_watch.Watch(["GPU-1"]).observations())["devices"]
        assert device["clock_reasons"] == reasons


@pytest.mark.parametrize("xid", [144, 145, 146, 149, 155, 157, 159, 160, 161, 167, 169, 173, 175])
def test_an_error_of_hardware_that_may_need_no_reset_ends_the_run_only(xid):
    look = GpuObservation(at_s=0, devices=[DeviceObservation(uuid="GPU-1", xids=[xid], recovery_action=0)])
    assert broken_devices(look) == []
    assert find_fault(summarize_devices(over_a_run({}, {"xids": [xid]}), ())) == Fault(
        f"GPU GPU-1 reported Xid {xid} during the run", True
    )


@pytest.mark.parametrize(("status", "action"), [(pynvml.NVML_SUCCESS, 4), (pynvml.NVML_ERROR_NOT_SUPPORTED, None)])
def test_the_recovery_action_of_the_driver_is_recorded_if_it_knows_one(status, action, monkeypatch):
    field = SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=4))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lambda _: SimpleNamespace(used=GIB))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda _, fields: [field] if fields == [230] else [])
    (device,) = next(nvml_watch.Watch(["GPU-1"]).observations())["devices"]
    assert device["recovery_action"] == action


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 147, 148, 154, 162])
def test_what_a_faulty_program_raises_does_not_break_the_device(xid):
    assert broken_devices(GpuObservation(at_s=0, devices=[DeviceObservation(uuid="GPU-1", xids=[xid])])) == []
    assert find_fault(summarize_devices(over_a_run({}, {"xids": [xid]}), ())) is None


def test_a_device_is_occupied_by_other_processes_or_by_what_a_run_left():
    assert "4711 (1.00 GiB)" in occupied_devices(look_at(pids=[4711]), {})[0]
    assert "2.00 GiB more" in occupied_devices(look_at(memory_used_bytes=3 * GIB), {"GPU-1": GIB})[0]
    assert occupied_devices(look_at(), {"GPU-1": GIB}) == []


def test_a_device_that_must_end_its_traffic_is_waited_for():
    look = look_at(recovery_action=3)
    assert broken_devices(look) == []
    (problem,) = occupied_devices(look, {"GPU-1": GIB})
    assert "recovery action 3" in problem and "nvidia-smi -pm 0" in problem


def test_throttling_is_recorded_and_no_fault_of_the_device():
    devices = summarize_devices(
        over_a_run({}, {"clock_reasons": THERMAL}, {"clock_reasons": POWER_BRAKE | CAPPED}, {}), ()
    )
    assert devices[0].throttled_fraction == pytest.approx(2 / 3)
    assert devices[0].throttle_reasons == ("hardware thermal slowdown", "hardware power brake")
    assert find_fault(devices) is None


@pytest.mark.parametrize(
    ("throttled", "looks", "counts"), [(1, 8, False), (2, 8, False), (3, 12, True), (3, 40, False), (9, 9, True)]
)
def test_a_gpu_is_throttled_from_three_looks_and_a_tenth_of_the_run_on(throttled, looks, counts):
    changes = [{"clock_reasons": SOFTWARE_THERMAL}] * throttled + [{}] * (looks - throttled)
    (device,) = summarize_devices(over_a_run({}, *changes), ())
    assert (device.is_throttled, device.samples) == (counts, looks)


def test_clock_power_and_temperature_of_a_run_are_recorded():
    first = {"sm_clock_mhz": 1980, "power_mw": 690_000, "temperature_c": 61}
    last = {"sm_clock_mhz": 1740, "power_mw": 700_000, "temperature_c": 83}
    (device,) = summarize_devices(over_a_run({"sm_clock_mhz": 345}, first, last, {}), ())
    assert (device.sm_clock_mhz, device.power_w, device.temperature_c) == (1860, 695, 83)


def test_a_gpu_that_does_not_say_why_its_clocks_are_low_is_not_taken_for_a_cool_one():
    (device,) = summarize_devices(over_a_run({}, {"clock_reasons": None}, {"clock_reasons": None}), ())
    assert (device.throttled_fraction, device.power_capped_fraction) == (None, None)
    assert find_fault([device]) is None
    (half,) = summarize_devices(over_a_run({}, {"clock_reasons": None}, {"clock_reasons": THERMAL}), ())
    assert half.throttled_fraction == 1


def test_the_power_cap_of_a_full_load_is_recorded_and_no_fault():
    devices = summarize_devices(over_a_run({}, {"clock_reasons": CAPPED}, {"clock_reasons": CAPPED}), ())
    assert devices[0].power_capped_fraction == 1
    assert find_fault(devices) is None


def test_memory_errors_and_strangers_in_a_run_excuse_everything():
    ecc = find_fault(summarize_devices(over_a_run({"uncorrected_ecc": 2}, {"uncorrected_ecc": 3}), ()))
    assert ecc == Fault("GPU GPU-1 had 1 uncorrected memory errors in the run", True)
    stranger = find_fault(summarize_devices(over_a_run({}, {"pids": [4711, 12]}), {4711}))
    assert stranger is not None and stranger.excuses_failures and "4711" in stranger.message


def test_a_gpu_that_is_lost_without_an_xid_excuses_the_crash_of_its_rank():
    (device,) = summarize_devices(over_a_run({}, {}, {"lost": "GPU is lost"}), ())
    lost = Conditions(devices=(device,))
    result = with_conditions(make_task(), Failure(kind="crash", message="unspecified launch failure"), lost, None)
    assert isinstance(result, Failure) and not device.is_quiet
    assert (result.kind, result.message) == ("device", "GPU GPU-1 did not answer after the run (GPU is lost)")
    (again,) = summarize_devices(over_a_run({}, {"lost": "Timeout"}, {}), ())
    assert find_fault([again]) is None


def test_a_slow_gpu_is_a_straggler_and_a_slow_cpu_rank_is_not():
    gpus = Cluster(device="cuda", gpu="NVIDIA H200", gpus_per_node=3, memory_gib=140, host_memory_gib=100)
    nodes = (NodeConditions(host="n0", first_rank=0, ranks=1), NodeConditions(host="n1", first_rank=1, ranks=2))
    actual_straggler = straggler(gpus, Conditions(rank_pace_s=(0.010, 0.014, 0.010), nodes=nodes))
    assert actual_straggler is not None and "rank 1 on n1" in actual_straggler.message
    assert straggler(gpus, Conditions(rank_pace_s=(0.010, 0.011, 0.010))) is None
    assert straggler(make_task().cluster, Conditions(rank_pace_s=(0.010, 0.014))) is None


BAD = Conditions(devices=summarize_devices(over_a_run({}, {"pids": [4711]}), {4711}))


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
    result = with_conditions(make_task(), Failure(kind="oom", message="tried to allocate 3 GiB"), BAD, None)
    assert isinstance(result, Failure)
    assert result.kind == "device" and not result.is_infeasible
    assert result.conditions == BAD


def test_a_run_on_a_good_device_keeps_its_result_and_says_what_was_seen():
    good = Conditions(devices=summarize_devices(over_a_run({}, {"clock_reasons": CAPPED}), ()))
    result = with_conditions(make_task(), measured(), good, None)
    assert isinstance(result, Measurement)
    assert (result.suspect, result.conditions) == (None, good)
    oom = with_conditions(make_task(), Failure(kind="oom", message="3 GiB"), good, None)
    assert isinstance(oom, Failure) and oom.kind == "oom" and oom.conditions == good


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens_per_s_per_gpu": 7000.0}, "at most 6,667"),
        ({"mfu": 1.3, "tokens_per_s_per_gpu": 4000.0}, None),
        ({"window_step_times_s": (9.0, 9.0)}, "in a run that took 10.00 s"),
        ({"window_step_times_s": (1.0, 0.0)}, "a timed window of 0.0 s"),
        ({"data_wait_fraction": 0.4}, "40% of the timed windows"),
        ({"mfu": 0.6, "tokens_per_s_per_gpu": 3000.0, "data_wait_fraction": 0.1}, None),
    ],
)
def test_numbers_that_cannot_be_true_are_suspect(changes, words):
    result = with_conditions(
        make_task(forward_flops_per_token=1e9, least_flops_per_token=5e8),
        measured(**changes),
        Conditions(),
        peak_flops=1e13,
    )
    assert isinstance(result, Measurement)
    assert (result.suspect is None) == (words is None)
    assert words is None or words in (result.suspect or "")


def test_float8_may_be_twice_as_fast_as_the_peak_in_bf16():
    task = make_task(forward_flops_per_token=1e9, least_flops_per_token=5e8)
    in_float8 = task.model_copy(update={"workload": task.workload.model_copy(update={"float8": "tensorwise"})})
    for tokens_per_s, words in ((7000.0, None), (14_000.0, "at most 13,333")):
        result = with_conditions(in_float8, measured(tokens_per_s_per_gpu=tokens_per_s), Conditions(), peak_flops=1e13)
        assert isinstance(result, Measurement)
        assert result.suspect is None if words is None else words in (result.suspect or "")


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """A watch on one GPU of the driver's; (watch, set), where set(**changes) changes what the device says."""
    driver = FakeDriver(tmp_path, H100)
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    code = "from shardtune.workers.machine import nvml_watch; nvml_watch._PERIOD_MS = 50; nvml_watch.main()"
    device_watch = DeviceWatch(["GPU-0"], tmp_path, (sys.executable, "-c", code), patience_s=3.0)
    device_watch.start()
    yield device_watch, lambda **changes: driver.says(H100 | changes)
    device_watch.close()


def seen_when(devices, condition):
    """The first look at the device of which the condition holds."""
    while not (looks := [look for look in devices.between(0, float("inf")) if condition(look.devices[0])]):
        time.sleep(0.01)
    return looks[0]


def test_what_nvidias_library_says_of_a_device_is_seen(watch):
    devices, set_ = watch
    well = seen_when(devices, lambda device: True)
    assert broken_devices(well) == []
    assert (well.devices[0].memory_used_bytes, well.devices[0].processes) == (GIB, [])
    set_(xids="31,79", reasons=THERMAL, ecc=3, remapped="0,1,1,0", pids="4711")
    ill = seen_when(devices, lambda device: device.xids == [31, 79] and device.processes)
    assert (ill.devices[0].clock_reasons, ill.devices[0].uncorrected_ecc, ill.devices[0].remap_pending) == (
        THERMAL,
        3,
        True,
    )
    assert "reset it" in broken_devices(ill)[0] and "4711 (1.00 GiB)" in occupied_devices(ill, {})[0]
    set_(lost=GPU_IS_LOST)
    assert "GPU is lost" in broken_devices(seen_when(devices, lambda device: device.lost))[0]


def test_a_device_that_answers_little_is_still_seen(watch, tmp_path):
    devices, _ = watch
    FakeDriver(tmp_path, {"total": 2 * GIB, "used": 2 * GIB})
    device = seen_when(devices, lambda device: device.memory_used_bytes == 2 * GIB).devices[0]
    assert (device.processes, device.clock_reasons, device.uncorrected_ecc, device.remap_failed) == (None,) * 4


def test_work_waits_until_the_devices_are_free_and_names_nobody_while_the_driver_releases_them(watch, tmp_path, caplog):
    caplog.set_level("INFO")
    devices, set_ = watch
    devices.require_fit(lambda: False)
    set_(pids=os.getpid())
    waited = threading.Timer(0.5, set_)
    devices_are_taken(devices)
    waited.start()
    devices.require_fit(lambda: False)
    assert not waited.is_alive()
    assert not (tmp_path / "doing.txt").exists()
    assert "waiting for the GPUs" not in caplog.text


def devices_are_taken(devices):
    while not any(device.processes for look in devices.between(0, float("inf"))[-1:] for device in look.devices):
        time.sleep(0.01)


def test_devices_that_stay_occupied_are_given_up_with_the_reason(watch):
    devices, set_ = watch
    devices._patience_s = 0.5
    set_(pids=os.getpid())
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
    before, after = HostCounters(100.0, 50.0, 8.0, 1.0), HostCounters(110.0, 65.0, 2.0, 1.5)
    difference = before.until(after, [4.0, 6.0])
    assert (difference.foreign_cpu_cores, difference.memory_available_gib, difference.cpu_throttled_s) == (
        0.5,
        8.0,
        0.5,
    )
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
