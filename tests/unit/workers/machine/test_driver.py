"""NVIDIA's library (a small one that answers from a file) as NVML, torch and DeepSpeed really ask it."""

import json
from pathlib import Path

import pytest

from shardtune.api_schemas.training.native_dtypes import DeviceDtypes, decide, emulation_note
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.workers.machine import rank_devices, unsupported_hardware
from shardtune.workers.machine.device_health import GpuObservation
from shardtune.workers.machine.device_watch import DevicesUnfit, DeviceWatch
from shardtune.workers.machine.inventory import DetectedGpu, DetectionFailed, Gpus, Libraries, find_gpus, inventory
from shardtune.workers.machine.nvml import create_uvm_device
from tests.support.nvml.fake_driver import GPU_IS_LOST, H100, NO_PERMISSION, T4, VERSION_MISMATCH, FakeDriver

RANK_SIDE = """
import json, os, sys
import shardtune.workers.rank.fork_server.forking
from deepspeed.accelerator import get_accelerator
gpu = get_accelerator()
# What ZeRO-1 and 2 ask while they are set up; the figures are torch's, which has none on this machine.
gpu.total_memory, gpu.memory_allocated = lambda _: 100, lambda _: 40
print(json.dumps([type(gpu).__name__, gpu.available_memory(0), os.path.exists(os.environ["FAKE_NVML_LOG"])]))
sys.stdout.flush()
if os.fork() == 0:
    import pynvml
    pynvml.nvmlInit()
    os._exit(0 if pynvml.nvmlDeviceGetCount() == 8 else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
"""Imports of a fork server, then of a rank forked from it."""
COUNT = "import torch.cuda; print(torch.cuda._device_count_nvml())"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Eight H100, for the children of this process."""
    fake_driver = FakeDriver(tmp_path, *[H100] * 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in fake_driver.environment.items():
        monkeypatch.setenv(name, value)
    return fake_driver


def test_eight_equal_gpus_are_offered_with_their_links(driver: FakeDriver) -> None:
    offered = inventory(find_gpus(), Libraries(), None, None)
    fingerprint = offered.fingerprint
    assert (offered.cluster.gpu, offered.cluster.gpus_per_node, offered.cluster.memory_gib) == (H100["name"], 8, 79.05)
    assert (fingerprint.gpu_links, fingerprint.driver, fingerprint.sm_clock_mhz, fingerprint.power_limit_w) == (
        "28×NV18",
        "570.124.06",
        1980,
        700,
    )
    assert fingerprint.native_dtypes == "float32, float16, bfloat16, float8"
    able = Libraries(float8=("tensorwise", "rowwise"))
    assert inventory(find_gpus(), able, None, None).float8 == able.float8


def test_float8_is_offered_by_gpus_that_have_it_and_by_cpu_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = Libraries(float8=("tensorwise",))
    assert inventory(Gpus(driver=None, devices=()), able, None, None).float8 == ("tensorwise",)
    assert inventory(Gpus(driver=None, devices=()), Libraries(), None, None).float8 == ()
    a100 = DetectedGpu.model_validate(
        {
            "name": "NVIDIA A100-SXM4-80GB",
            "uuid": "GPU-0",
            "memory_bytes": 80 << 30,
            "compute_capability": (8, 0),
            "pcie_gb_per_s": None,
        }
    )
    assert inventory(Gpus(driver="570", devices=(a100,)), able, None, None).float8 == ()


def test_mixed_cards_are_rejected_until_equal_ones_are_chosen(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.says(H100, T4, H100)
    with pytest.raises(ValueError, match="several models"):
        find_gpus().for_ranks(None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert rank_devices.environment(find_gpus().for_ranks(None))["CUDA_VISIBLE_DEVICES"] == "0,2"


@pytest.mark.parametrize("visible", ["GPU-3,GPU-5", "3,5"])
def test_ranks_get_numbers_in_the_order_of_nvml_whatever_the_owner_wrote(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    environment_variables = rank_devices.environment(find_gpus().for_ranks(1))
    assert (
        environment_variables["CUDA_VISIBLE_DEVICES"],
        environment_variables["CUDA_DEVICE_ORDER"],
        environment_variables["DS_ACCELERATOR"],
    ) == (
        "3",
        "PCI_BUS_ID",
        "cuda",
    )


def test_a_gpu_without_permission_is_left_out_and_the_others_are_numbered_as_cuda_does(driver: FakeDriver) -> None:
    driver.says(H100, H100 | {"error": NO_PERMISSION}, H100)
    gpus = find_gpus()
    assert gpus.uuids == ["GPU-0", "GPU-2"]
    environment_variables = rank_devices.environment(gpus)
    assert environment_variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert driver.python("-c", COUNT, **environment_variables).stdout.strip() == "2"


@pytest.mark.parametrize("visible", ["1,2", "GPU-1,GPU-2"])
def test_beside_a_gpu_in_mig_mode_ranks_get_uuids(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    driver.says(H100 | {"mig": 1}, H100, H100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    environment_variables = rank_devices.environment(find_gpus().for_ranks(None))
    assert environment_variables["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
    assert driver.python("-c", COUNT, **environment_variables).stdout.strip() == "2"


def test_ranks_get_numbers_in_the_order_of_pci_addresses_whatever_that_of_nvml_is(driver: FakeDriver) -> None:
    buses = ("00000000:c1:00.0", "00000000:1B:00.0", "00000000:43:00.0")
    driver.says(*(H100 | {"bus": bus} for bus in buses))
    gpus = find_gpus()
    assert gpus.uuids == ["GPU-0", "GPU-1", "GPU-2"]
    assert rank_devices.environment(gpus)["CUDA_VISIBLE_DEVICES"] == "2,0,1"


def test_gpus_that_all_lack_permission_are_rejected_not_taken_for_cpu_ranks(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.says(*[H100 | {"error": NO_PERMISSION}] * 8)
    with pytest.raises(DetectionFailed, match=r"8 GPUs, none of which this process may use.*--gpus-per-node=8"):
        find_gpus()
    rejected = driver.python("-m", "shardtune.workers", "detect")
    assert rejected.returncode == 1 and "--gpus-per-node=8" in rejected.stderr
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert find_gpus().devices == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(DetectionFailed, match="none of which this process may use"):
        find_gpus()


def test_mig_instances_are_rejected_not_taken_for_cpu_ranks(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.says(H100, H100 | {"mig": 1})
    with pytest.raises(DetectionFailed, match=r"GPU-1 is in MIG mode.*-mig 0"):
        find_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert find_gpus().uuids == ["GPU-0"]
    for names in ("MIG-7cb9b3a5-0c4a-5f8e-a2d2-6a6a1a0f0f0f", "GPU-0,MIG-7cb9b3a5-0c4a-5f8e-a2d2-6a6a1a0f0f0f"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        with pytest.raises(DetectionFailed, match=r"MIG-7cb9b3a5.*names a MIG instance"):
            find_gpus()
    rejected = driver.python("-m", "shardtune.workers", "detect", CUDA_VISIBLE_DEVICES="1")
    assert rejected.returncode == 1 and "MIG" in rejected.stderr


def test_a_setting_that_names_no_gpu_is_rejected_and_none_is_meant_by_none(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "8")
    with pytest.raises(DetectionFailed, match=r"CUDA_VISIBLE_DEVICES \(8\) names none of the 8 GPUs"):
        find_gpus()
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert find_gpus().devices == ()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ("dev/kfd", "ROCm is not supported"),
        ("dev/dxg", "WSL2"),
        ("etc/nv_tegra_release", "Jetson"),
        ("dev/nvidia0", "cannot be used"),
    ],
)
def test_an_accelerator_without_nvml_is_named_and_not_replaced_by_cpu_ranks(
    tmp_path: Path, there: str, words: str
) -> None:
    assert unsupported_hardware.machine("NVML says: Not Found", tmp_path) is None
    (tmp_path / there).parent.mkdir()
    (tmp_path / there).touch()
    rejection = unsupported_hardware.machine("NVML says: Insufficient Permissions", tmp_path)
    assert rejection is not None and words in rejection and "CUDA_VISIBLE_DEVICES=''" in rejection
    if there == "dev/nvidia0":
        assert "NVIDIA_DRIVER_CAPABILITIES must contain `utility`" in rejection


def test_a_gpu_that_shares_the_host_s_memory_is_named_and_rejected(driver: FakeDriver) -> None:
    driver.says({"name": "NVIDIA GB10", "capability": "12,1", "reasons": 0})
    with pytest.raises(DetectionFailed, match=r"^NVIDIA GB10 shares the host's memory.*CUDA_VISIBLE_DEVICES=''"):
        find_gpus()


def test_a_driver_that_fails_is_told_and_not_taken_for_a_machine_without_gpus(driver: FakeDriver) -> None:
    driver.says(H100, error=999)
    with pytest.raises(DetectionFailed, match="Unknown Error"):
        find_gpus()
    driver.says(H100, error=VERSION_MISMATCH)
    with pytest.raises(DetectionFailed, match=r"NVML/RM version mismatch.*reboot after a driver update.*CPU ranks"):
        find_gpus()


def test_cpu_ranks_that_are_asked_for_need_no_driver_and_no_gpu_that_works(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus() == Gpus(driver="570.124.06", devices=())
    for error in (VERSION_MISMATCH, 999):
        driver.says(H100, error=error)
        assert find_gpus() == Gpus(driver=None, devices=())
    driver.says(H100, H100 | {"error": GPU_IS_LOST})
    assert find_gpus().devices == ()
    # A driver that hangs: no process answers in this time.
    monkeypatch.setattr("shardtune.workers.machine.inventory._NVML_S", 0.001)
    assert find_gpus() == Gpus(driver=None, devices=())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(DetectionFailed, match="NVML did not answer within"):
        find_gpus()


def test_a_gpu_that_is_named_twice_hides_all_as_in_cuda(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    for twice in ("0,0", "1,GPU-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", twice)
        with pytest.raises(DetectionFailed, match="or one of them twice"):
            find_gpus()
    assert driver.python("-c", COUNT, CUDA_VISIBLE_DEVICES="0,0").stdout.strip() == "0"


def test_deepspeed_leaves_nvml_alone_so_that_uuids_and_forks_work(driver: FakeDriver) -> None:
    output = driver.python("-c", RANK_SIDE, DS_ACCELERATOR="cuda", CUDA_VISIBLE_DEVICES="GPU-3,GPU-5")
    assert output.returncode == 0, output.stderr
    assert json.loads(output.stdout.splitlines()[-1]) == ["CUDA_Accelerator", 60, False]
    assert len(driver.processes_that_initialised) == 1


def test_a_card_that_only_emulates_bfloat16_trains_in_fp32_and_a_stated_precision_is_told(driver: FakeDriver) -> None:
    driver.says(T4)
    actual = DeviceDtypes.from_fingerprint(inventory(find_gpus(), Libraries(), None, None).fingerprint, {})
    precision, note = decide(None, [actual])
    assert precision.name == "fp32" and note is not None and "Tesla T4 only emulates bfloat16" in note
    assert "state fp16-mixed or fp32" in (emulation_note(PRECISIONS["bf16-mixed"], actual) or "")


def test_work_is_not_taken_on_a_gpu_that_is_broken(driver: FakeDriver, tmp_path: Path) -> None:
    driver.says(H100, H100 | {"remapped": "0,9,0,1"})
    watch = DeviceWatch(find_gpus().uuids, tmp_path)
    watch.start()
    try:
        with pytest.raises(DevicesUnfit, match="GPU-1 could not remap"):
            watch.require_fit(lambda: False)
    finally:
        watch.close()


def test_the_watch_reads_clock_power_and_temperature_and_null_where_a_gpu_tells_none(driver: FakeDriver) -> None:
    driver.says(H100 | {"clock_now": 1755, "power_now": 681_000, "temperature": 64}, T4)
    code = (
        "import json, pynvml; from shardtune.workers.machine.nvml_watch import Watch; pynvml.nvmlInit(); "
        "print(json.dumps(next(Watch(['GPU-0', 'GPU-1']).observations())))"
    )
    look = GpuObservation.model_validate_json(driver.python("-c", code).stdout)
    assert [(device.sm_clock_mhz, device.power_mw, device.temperature_c) for device in look.devices] == [
        (1755, 681_000, 64),
        (None, None, None),
    ]


@pytest.mark.parametrize(
    ("last_words", "words"),
    [
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver",
            "580 or newer",
        ),
        (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
            "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
            "nvidia-fabricmanager",
        ),
        ("Error 803: system has unsupported display driver / cuda driver combination", "reboot"),
        ("Error 804: forward compatibility was attempted on non supported HW", "cuda-compat"),
        ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment", "nvidia-uvm"),
        ("RuntimeError: No CUDA GPUs are available", "nvidia-uvm"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", "`compute`"),
        ("torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device", "older CUDA"),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "nvidia-smi -c 0"),
        ("ModuleNotFoundError: No module named 'deepspeed'", None),
    ],
)
def test_a_driver_that_torch_cannot_use_is_told_with_what_to_do(last_words: str, words: str | None) -> None:
    remedy = unsupported_hardware.driver_remedy(last_words)
    assert remedy is None if words is None else words in (remedy or "")


def test_the_device_that_cuda_needs_is_created_outside_of_the_fork_server_s_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, calls = tmp_path / "nvidia-modprobe", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\ntouch {tmp_path}/nvidia-uvm\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    create_uvm_device(tmp_path)
    create_uvm_device(tmp_path)
    assert calls.read_text() == "-u -c=0\n", "once: then it is there"


def test_cpu_ranks_are_told_that_they_are() -> None:
    assert rank_devices.environment(Gpus(driver=None, devices=())) == {
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
