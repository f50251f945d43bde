"""Fields of the fingerprint: GPUs as NVML describes them, the host, measured bandwidths, and overrides."""

import json
from types import SimpleNamespace

import pytest

from shardtune.api_schemas.machines.hardware import CollectiveTime, HardwareReport, MeasuredHardware, banded
from shardtune.workers.config.overrides import override
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.machine import hardware_speed, host_facts, nvml
from shardtune.workers.machine.hardware_speed import with_bandwidth
from shardtune.workers.machine.inventory import Gpus, Libraries, cluster, fingerprint, inventory
from shardtune.workers.machine.offered_inventory import offer

NOTHING = Gpus(driver=None, devices=())


class Machine:
    """Answers as NVML gives them on a machine of equal GPUs; `joined` says how two are, `answers` replaces one by name."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM, nvmlMemory_v2, NVML_FEATURE_ENABLED = 0, 2, 33554472, 1
    NVML_NVLINK_DEVICE_TYPE_GPU, NVML_NVLINK_DEVICE_TYPE_SWITCH = 0, 2
    NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE = 0, 10, 20
    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM = 30, 40, 50

    def __init__(self, count, links=(), level=50, **answers):
        """`links`: for each GPU the far ends of its NVLinks, a GPU's index or `switch`."""
        self.count, self.links, self.level, self.answers = count, links or [()] * count, level, answers

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *_: self._value(name)

    def _value(self, name):
        values = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": self.count,
            "nvmlSystemGetDriverVersion": "570.124.06",
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=85520809984, reserved=646119424),
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetPowerManagementLimit": 700000,
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
        } | self.answers
        if name not in values:
            raise self.NVMLError(f"{name}: Not Supported")
        return values[name]

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, handle, version):
        return self._value("nvmlDeviceGetMemoryInfo")

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"00000000:{handle:02X}:00.0")

    def _end(self, handle, link):
        if link >= len(self.links[handle]):
            raise self.NVMLError("Invalid Argument")
        return self.links[handle][link]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        return int(self._end(handle, link) != "down")

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle, link):
        return 2 if self._end(handle, link) == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle, link):
        return SimpleNamespace(busId=f"0000:{self._end(handle, link):02x}:00.0".encode())

    def nvmlDeviceGetTopologyCommonAncestor(self, first, other):
        return self.level(first, other) if callable(self.level) else self.level


def visible_gpus(machine, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Gpus.model_validate_json(json.dumps(nvml.report(machine)))


def test_an_nvswitch_machine(monkeypatch):
    gpus = visible_gpus(Machine(8, [["switch"] * 18] * 8), monkeypatch)
    actual_fingerprint = fingerprint(gpus, Libraries())
    assert (actual_fingerprint.gpu_links, gpus.for_ranks(2).links_in_words) == ("28×NV18", "1×NV18")
    assert (
        actual_fingerprint.gpu_count,
        actual_fingerprint.nodes,
        actual_fingerprint.driver,
        actual_fingerprint.gpu_memory_gib,
    ) == (8, 1, "570.124.06", 79.05)
    assert (actual_fingerprint.sm_clock_mhz, actual_fingerprint.power_limit_w, actual_fingerprint.pcie_gb_per_s) == (
        1980,
        700.0,
        63.0,
    )
    assert cluster(gpus, None, None).host_link_gb_per_s == 63.0


def test_a_lost_link_of_nvlink_shows(monkeypatch):
    lame = [["switch"] * 18] * 3 + [["switch"] * 17 + ["down"]]
    assert visible_gpus(Machine(4, lame), monkeypatch).links_in_words == "3×NV17, 3×NV18"


def test_bridged_pairs_and_pcie_in_the_words_of_nvidia_smi(monkeypatch):
    def level(first, other):
        return 30 if first // 2 == other // 2 else 50

    bridged = visible_gpus(Machine(4, [[1] * 4, [0] * 4, [3] * 4, [2] * 4], level), monkeypatch)
    assert bridged.links_in_words == "2×NV4, 4×SYS"
    assert visible_gpus(Machine(4, level=level), monkeypatch).links_in_words == "2×PHB, 4×SYS"


def test_settings_of_an_administrator_count_and_the_slowest_gpu(monkeypatch):
    machine = Machine(2, nvmlDeviceGetApplicationsClock=1410, nvmlDeviceGetCurrPcieLinkWidth=8)
    actual_fingerprint = fingerprint(visible_gpus(machine, monkeypatch), Libraries())
    assert (actual_fingerprint.sm_clock_mhz, actual_fingerprint.memory_clock_mhz, actual_fingerprint.pcie_gb_per_s) == (
        1410,
        1410,
        31.5,
    )
    slower = visible_gpus(machine, monkeypatch)
    changed = slower.devices[1].model_copy(update={"power_limit_w": 500.0})
    assert fingerprint(Gpus(driver="1", devices=(slower.devices[0], changed)), Libraries()).power_limit_w == 500.0


def test_what_a_device_does_not_say_is_unknown(monkeypatch):
    machine = Machine(1)
    machine.answers = {"nvmlDeviceGetPowerManagementLimit": 0, "nvmlDeviceGetMaxClockInfo": 0}
    actual_fingerprint = fingerprint(visible_gpus(machine, monkeypatch), Libraries())
    assert (actual_fingerprint.gpu_links, actual_fingerprint.power_limit_w, actual_fingerprint.sm_clock_mhz) == (
        None,
        None,
        None,
    )


def test_cpu_ranks_of_this_machine():
    actual_fingerprint = fingerprint(NOTHING, Libraries(torch="2.13.0"))
    assert (actual_fingerprint.device, actual_fingerprint.gpu_links, actual_fingerprint.power_limit_w) == (
        "cpu",
        None,
        None,
    )
    assert actual_fingerprint.cpu_topology and "socket" in actual_fingerprint.cpu_topology
    assert actual_fingerprint == fingerprint(NOTHING, Libraries(torch="2.13.0")), "looking twice finds no change"


def test_native_dtypes_are_the_gpus_or_those_torch_finds_in_the_processor(monkeypatch):
    assert (
        fingerprint(visible_gpus(Machine(1), monkeypatch), Libraries()).native_dtypes
        == "float32, float16, bfloat16, float8"
    )
    old = visible_gpus(Machine(1, nvmlDeviceGetCudaComputeCapability=(7, 0)), monkeypatch)
    assert fingerprint(old, Libraries(cpu_dtypes="float32, bfloat16")).native_dtypes == "float32, float16"
    assert fingerprint(NOTHING, Libraries(cpu_dtypes="float32")).native_dtypes == "float32"
    mute = Machine(1)
    mute.nvmlDeviceGetCudaComputeCapability = lambda _: mute._value("nvmlNothing")
    assert fingerprint(visible_gpus(mute, monkeypatch), Libraries()).native_dtypes is None


def test_the_environment_that_counts_is_part_of_it(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    monkeypatch.setenv("SHARDTUNE_API_KEY", "secret")
    environment_variables = fingerprint(NOTHING, Libraries()).environment
    assert "MALLOC_TRIM_THRESHOLD_=131072" in environment_variables and not any(
        "secret" in setting for setting in environment_variables
    )


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_the_host_as_the_kernel_describes_it(tmp_path):
    for node in range(2):
        (tmp_path / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    threads = [f"processor\t: {n}\nphysical id\t: {n // 4}\ncore id\t\t: {n % 4 // 2}\n" for n in range(8)]
    write(tmp_path / "proc/cpuinfo", "\n".join(threads))
    write(tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "3500000")
    assert host_facts.cpu_topology(tmp_path) == "2 sockets, 4 cores, 8 threads, 2 NUMA nodes"
    assert host_facts.cpu_max_mhz(tmp_path) == 3500
    assert host_facts.cpu_max_mhz(tmp_path / "none") is host_facts.cpu_topology(tmp_path / "none") is None


def test_network_links_that_are_up_and_real(tmp_path):
    def link(name, state="up", speed="25000", has_device=True):
        for file, text in (("type", "1"), ("operstate", state), ("speed", speed)):
            write(tmp_path / f"sys/class/net/{name}/{file}", text)
        if has_device:
            (tmp_path / f"sys/class/net/{name}/device").mkdir()

    def port(name, state="4: ACTIVE", kind="InfiniBand"):
        for file, text in (("state", state), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", kind)):
            write(tmp_path / f"sys/class/infiniband/{name}/ports/1/{file}", text)
        (tmp_path / f"sys/class/infiniband/{name}/device").mkdir()

    link("eth0"), link("eth1"), link("eth2", state="down"), link("docker0", has_device=False), link("ens5", speed="-1")
    port("mlx5_0"), port("mlx5_1"), port("mlx5_2", state="1: DOWN"), port("mlx5_3", kind="Ethernet")
    expected = "2×25 Gb/s Ethernet, 2×400 Gb/s InfiniBand, 1×400 Gb/s RoCE, 1×Ethernet"
    assert host_facts.nics(tmp_path) == expected
    assert host_facts.nics(tmp_path / "none") is None
    # Whoever writes the text reads it, so that another wording cannot hide a slow network.
    assert host_facts.nominal_gb_per_s(expected) == {"Ethernet": 6.25, "InfiniBand": 100.0, "RoCE": 50.0}


def collectives(*seconds):
    return MeasuredHardware(
        bf16_flops=1e12, fp32_flops=1e12, copy_bytes_per_s=1e9, launch_s=1e-5,
        collectives=[
            CollectiveTime(operation="all_reduce", bytes=size, seconds=s)
            for size, s in zip((1 << 20, 1 << 30), seconds, strict=True)
        ],
    )  # fmt: skip


def test_the_largest_all_reduce_gives_the_bandwidth_between_ranks():
    widened = with_bandwidth(fingerprint(NOTHING, Libraries()), collectives(1.0, 0.005), ranks=8)
    assert widened.intra_node_gb_per_s == banded((1 << 30) / 0.005 * 14 / 8 / 1e9) == pytest.approx(376, rel=0.05)
    assert with_bandwidth(widened, None, 8) == widened


def test_within_a_host_and_across_hosts_are_two_bandwidths():
    """Rates measured over 200 Mbit/s: within a host 4.2 Gbit/s, one rank of each host 0.1, all four 0.19."""
    times = [(2, 1, 0.008), (2, 2, 0.336), (4, 2, 0.268)]
    widened = with_bandwidth(
        fingerprint(NOTHING, Libraries()),
        MeasuredHardware(
            bf16_flops=1e12, fp32_flops=1e12, copy_bytes_per_s=1e9, launch_s=1e-5,
            collectives=[
                CollectiveTime(operation="all_reduce", bytes=1 << 22, seconds=s, ranks=r, nodes=n) for r, n, s in times
            ],
        ),
        ranks=4,
    )  # fmt: skip
    assert widened.intra_node_gb_per_s == pytest.approx(0.52, rel=0.06)
    assert widened.inter_node_gb_per_s == pytest.approx(0.0235, rel=0.06)


@pytest.mark.parametrize(
    ("device", "nics", "gb_per_s", "cause"),
    [
        ("cuda", "8×400 Gb/s InfiniBand", 1.2, "NCCL"),
        ("cuda", "8×400 Gb/s InfiniBand, 1×25 Gb/s Ethernet", 300.0, None),
        ("cpu", "2×25 Gb/s Ethernet", 0.02, "--interface"),
        ("cpu", None, 0.02, None),
        ("cuda", "1×Ethernet", 0.02, None),
    ],
)
def test_hosts_that_exchange_far_less_than_their_links_allow_are_told_the_likely_cause(device, nics, gb_per_s, cause):
    update = {"device": device, "nics": nics, "inter_node_gb_per_s": gb_per_s}
    notes = hardware_speed.notes(fingerprint(NOTHING, Libraries()).model_copy(update=update))
    assert [cause is not None and cause in note and str(gb_per_s) in note for note in notes] == [True] * (
        cause is not None
    )


def test_a_measurement_of_the_release_before_is_found_again(tmp_path):
    settings = WorkerSettings(work_dir=tmp_path)
    detected = inventory(NOTHING, Libraries(), None, None)
    old = detected.model_copy(update={"fingerprint": detected.fingerprint.first_version()})
    assert hardware_speed._path(tmp_path, old) == hardware_speed._path(tmp_path, detected)
    assert offer(settings, NOTHING, Libraries()) == detected


def test_a_measurement_with_other_units_is_not_this_machines(tmp_path):
    """`ONEDNN_MAX_CPU_ISA` takes them away from the same processor."""
    was, now = (inventory(NOTHING, Libraries(cpu_dtypes=words), 1, None) for words in ("float32, bfloat16", "float32"))
    report = HardwareReport(cluster=was.cluster, fingerprint=was.fingerprint, measured=collectives(1.0, 0.005))
    hardware_speed._path(tmp_path, was).write_text(report.model_dump_json())
    assert hardware_speed.stored(tmp_path, was) == report.measured
    assert hardware_speed.stored(tmp_path, now) is None


def test_overrides_are_checked_converted_and_marked():
    settings = WorkerSettings(fingerprint_override=["driver=560.1", "sm_clock_mhz=1200"])
    actual_overridden = override(fingerprint(NOTHING, Libraries()), settings.fingerprint_override)
    assert (actual_overridden.driver, actual_overridden.sm_clock_mhz, actual_overridden.overridden) == (
        "560.1",
        1200,
        ("driver", "sm_clock_mhz"),
    )
    assert WorkerSettings(fingerprint_override="driver=1; nccl=2.28").fingerprint_override == {
        "driver": "1",
        "nccl": "2.28",
    }


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("drivr=1", "choose from gpu, gpu_count"),
        ("device=cuda", "choose from"),
        ("driver", "must be FIELD=VALUE"),
        ("sm_clock_mhz=fast", r"fingerprint_override \(sm_clock_mhz=fast\): Input should be a valid integer"),
    ],
)
def test_an_override_of_nothing_is_rejected_with_what_there_is(entry, words):
    with pytest.raises(ValueError, match=words):
        WorkerSettings(fingerprint_override=[entry])
