"""Facts about the host of the ranks, from /proc and /sys: processor, memory, network. Starts no process."""

import hashlib
import platform
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import psutil

from shardtune.api_schemas.base import GIB
from shardtune.workers.machine.oom_counter import cgroups

_ETHERNET = "1"
"""Value in /sys/class/net/*/type that marks an Ethernet interface (ARPHRD_ETHER)."""
_LINK = re.compile(r"(\d+)×([\d.]+) Gb/s (\w+)")
"""Pattern of one kind of links in the text of `nics`."""


def host_memory_gib() -> float:
    """Memory in GiB that this process and its children may use: all memory of the machine, or less if a control group
    limits it."""
    limits = [float(psutil.virtual_memory().total)]
    root = Path("/sys/fs/cgroup")
    for controllers, group in cgroups():
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        # A limit may be set on any level above ours; in a container the outer levels are not visible.
        for level in [base / group, *(base / group).parents]:
            if level.is_relative_to(base):
                limits += _limit(level / name)
    return min(limits) / GIB


def _limit(path: Path) -> list[float]:
    try:
        return [float(path.read_text())]
    except (OSError, ValueError):  # not there, or "max"
        return []


def cpu_model() -> str:
    """Name of the processor, as the kernel prints it."""
    names = _cpuinfo(Path("/"), "model name")
    return names[0] if names else platform.machine()


def cpu_topology(root: Path = Path("/")) -> str | None:
    """Processor topology of the whole machine, such as `2 sockets, 64 cores, 128 threads, 4 NUMA nodes`; None if the
    kernel does not report it."""
    sockets, cores = _cpuinfo(root, "physical id"), _cpuinfo(root, "core id")
    if not sockets or len(sockets) != len(cores):
        return None
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or 1
    counts = (
        (len(set(sockets)), "socket"),
        (len(set(zip(sockets, cores, strict=True))), "core"),
        (len(cores), "thread"),
        (nodes, "NUMA node"),
    )
    return ", ".join(f"{count} {unit}{'s' if count > 1 else ''}" for count, unit in counts)


def host_id(root: Path = Path("/")) -> str:
    """Id of this machine, equal in all processes until the machine reboots; a container with its own host name counts
    as a machine."""
    boot = _text(root / "proc/sys/kernel/random/boot_id")
    return hashlib.sha256(f"{boot} {platform.node()}".encode()).hexdigest()[:16]


def cores_in_order(cores: Collection[int], root: Path = Path("/")) -> list[int]:
    """CPU numbers in an order in which those of one socket are neighbours, and within it the hardware threads of one
    physical core."""

    def position(core: int) -> tuple[int, int, int]:
        topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
        socket, number = (_text(topology / name) for name in ("physical_package_id", "core_id"))
        return (int(socket) if socket.isdigit() else 0, int(number) if number.isdigit() else core, core)

    return sorted(cores, key=position)


def numa_nodes(cores: Collection[int], root: Path = Path("/")) -> dict[int, int]:
    """NUMA node of each of the given CPUs, as far as the kernel reports it."""
    node_names = {
        core: [entry.name.removeprefix("node") for entry in (root / f"sys/devices/system/cpu/cpu{core}").glob("node*")]
        for core in cores
    }
    return {core: int(names[0]) for core, names in node_names.items() if names and names[0].isdigit()}


def cpu_max_mhz(root: Path = Path("/")) -> int | None:
    """Highest clock in MHz that the CPU frequency governor may set. An administrator may have lowered it. None if the
    kernel does not report it."""
    khz = _text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq")
    return int(khz) // 1000 if khz.isdigit() and int(khz) >= 1000 else None


def nics(root: Path = Path("/")) -> str | None:
    """Network links that are up, by count, speed and kind; virtual links are left out. None if there are none."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    links = Counter(
        # "400 Gb/sec (4X NDR)"; an Ethernet port of such a card speaks RoCE.
        f"{_text(port / 'rate').split(' ')[0]} Gb/s {'RoCE' if _text(port / 'link_layer') == 'Ethernet' else 'InfiniBand'}"
        for port in ports
        if "ACTIVE" in _text(port / "state")
    )
    cards = {(port.parents[1] / "device").resolve() for port in ports}
    for link in sorted((root / "sys/class/net").glob("*")):
        device = link / "device"
        if not device.exists() or device.resolve() in cards or _text(link / "type") != _ETHERNET:
            continue
        if _text(link / "operstate") != "up":
            continue
        speed = _text(link / "speed")
        links[f"{int(speed) / 1000:g} Gb/s Ethernet" if speed.isdigit() and int(speed) else "Ethernet"] += 1
    return ", ".join(f"{count}×{kind}" for kind, count in sorted(links.items())) or None


def nominal_gb_per_s(links: str) -> dict[str, float]:
    """Nominal rate in GB/s of a host's links by kind. `links` has the form of `nics`; links of unknown speed are left
    out."""
    rates: dict[str, float] = {}
    for count, gbit_per_s, kind in _LINK.findall(links):
        rates[kind] = rates.get(kind, 0.0) + int(count) * float(gbit_per_s) / 8
    return rates


def _cpuinfo(root: Path, name: str) -> list[str]:
    lines = _text(root / "proc/cpuinfo").splitlines()
    return [line.split(":", 1)[1].strip() for line in lines if line.split(":", 1)[0].strip() == name]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):  # not there, a link that is down, or not text
        return ""
