"""Inventory of the agent's machine."""

import sys
from pathlib import Path

import pytest

from shardtune.workers.launchers.base import Prepared
from shardtune.workers.machine import library_probe
from shardtune.workers.machine.gpu_peaks import figures
from shardtune.workers.machine.host_facts import host_memory_gib
from shardtune.workers.machine.inventory import (
    DetectedGpu,
    DetectionFailed,
    Gpus,
    Libraries,
    cluster,
    find_gpus,
    fingerprint,
    inventory,
)
from shardtune.workers.machine.nvml import visible
from shardtune.workers.machine.oom_counter import oom_kills
from tests.support.nvml.fake_driver import H100, FakeDriver

GPUS = [
    DetectedGpu(uuid=f"GPU-{n}", name="NVIDIA H200", memory_bytes=(140 << 30) + n, pcie_gb_per_s=63.0) for n in range(4)
]


def test_this_machine_offers_what_it_has():
    gpus = find_gpus()
    offered = inventory(gpus, Libraries(torch="2.13.0", cuda="13.0"), ranks=None, memory_gib=None)
    assert offered.fingerprint.torch == "2.13.0"
    assert offered.cluster.device == ("cuda" if gpus.devices else "cpu")
    assert offered.cluster.host_memory_gib == round(host_memory_gib(), 2)
    assert offered.cluster.gpus_per_node == (len(gpus.devices) or 2)


def test_cpu_ranks_share_the_hosts_memory_and_leave_some():
    offered = cluster(Gpus(driver=None, devices=()), ranks=4, memory_gib=None)
    assert offered.gpus_per_node == 4
    assert 0 < 4 * offered.memory_gib < host_memory_gib()


def test_declared_memory_is_for_cpu_ranks_only():
    assert cluster(Gpus(driver=None, devices=()), None, 1.5).memory_gib == 1.5
    with pytest.raises(ValueError, match="memory_gib"):
        cluster(Gpus(driver="570", devices=GPUS), None, 1.5)


def test_gpus_are_offered_as_nvml_sees_them():
    offered = inventory(Gpus(driver="570", devices=GPUS).for_ranks(2), Libraries(), None, None)
    assert (offered.cluster.gpu, offered.cluster.gpus_per_node) == ("NVIDIA H200", 2)
    assert (offered.cluster.memory_gib, offered.cluster.intra_node_gb_per_s) == (140.0, 450)
    assert offered.peak_flops == 989e12
    assert offered.fingerprint.driver == "570"


def test_more_ranks_than_gpus_and_mixed_gpus_are_rejected():
    with pytest.raises(ValueError, match=r"ranks \(5\)"):
        Gpus(driver="570", devices=GPUS).for_ranks(5)
    with pytest.raises(ValueError, match="several models"):
        Gpus(driver="570", devices=[GPUS[0], GPUS[1].model_copy(update={"name": "NVIDIA L4"})]).for_ranks(None)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A800-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA H20", 148),
    ],
)
def test_known_peaks(name, tflops):
    assert figures(name).peak_bf16_flops == tflops * 1e12


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-32GB", "Tesla T4", "NVIDIA A10G", "NVIDIA H200 NVL", "cpu"])
def test_a_peak_nobody_vouches_for_is_none(name):
    assert figures(name).peak_bf16_flops is None


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-bb", [1]),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(setting, chosen):
    assert visible(["GPU-aa1", "GPU-bb2", "GPU-cc3"], setting) == chosen


def test_what_a_fork_server_found_is_not_looked_at_again():
    prepared = Prepared(libraries={"torch": "2.11.0", "matmul_flops": {"float32": 1e9}})
    libraries = library_probe.of_prepared(prepared, Gpus(driver=None, devices=()), ranks=2)
    assert (libraries.torch, libraries.matmul_flops) == ("2.11.0", {"float32": 1e9})


def test_the_fingerprint_of_cpu_ranks_names_no_gpu():
    actual_fingerprint = fingerprint(Gpus(driver=None, devices=()), Libraries())
    assert (
        actual_fingerprint.device,
        actual_fingerprint.gpu,
        actual_fingerprint.gpu_count,
        actual_fingerprint.gpu_memory_gib,
    ) == ("cpu", "cpu", 0, None)
    assert actual_fingerprint.cpu


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("line", "counter"),
    [("0::/job/7", "job/7/memory.events"), ("4:memory:/job/7", "memory/job/7/memory.oom_control")],
)
def test_oom_kills_are_counted_in_our_own_control_group(tmp_path, line, counter):
    write(tmp_path / "proc/self/cgroup", line + "\n")
    write(tmp_path / "proc/vmstat", "oom_kill 9\n")
    assert oom_kills(tmp_path / "proc", tmp_path / "cgroup") == 9
    write(tmp_path / "cgroup" / counter, "oom 5\nunder_oom 0\noom_kill 2\n")
    assert oom_kills(tmp_path / "proc", tmp_path / "cgroup") == 2


def test_gpus_under_a_torch_without_cuda_are_not_quietly_left_idle():
    with pytest.raises(DetectionFailed, match="without CUDA"):
        fingerprint(Gpus(driver="570", devices=GPUS), Libraries(torch="2.13.0+cpu"))


def test_ranks_that_a_wrong_driver_ends_are_told_with_the_driver_s_remedy(tmp_path, monkeypatch):
    words = "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."
    script = tmp_path / "rank.py"
    script.write_text(f"import sys; sys.exit({words!r})\n")
    monkeypatch.setattr(library_probe, "PYTHON", (sys.executable, str(script)))
    with pytest.raises(DetectionFailed, match="580 or newer") as error:
        library_probe.probe(Gpus(driver=None, devices=()))
    assert words in str(error.value) and "worker` extra" not in str(error.value)


def test_detection_of_gpus_creates_the_device_that_cuda_needs(tmp_path, monkeypatch):
    program, calls = tmp_path / "nvidia-modprobe", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    program.chmod(0o755)
    for name, value in FakeDriver(tmp_path, H100).environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus().devices == () and not calls.exists(), "nobody asked for a GPU"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert len(find_gpus().devices) == 1
    # On a machine with a GPU the device is there.
    assert calls.exists() or Path("/dev/nvidia-uvm").exists()
