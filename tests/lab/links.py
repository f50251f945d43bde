"""The cables: one bridge per laboratory, a link from each host to it, each shaped at both ends; `tc tbf` and nothing else.

A shaped link gives no latency, and lets a first burst of 64 KiB through.
"""

import json
import subprocess
from collections.abc import Iterable

INTERFACE = "eth0"
"""Name of a link on its host."""
_BURST = "64kb"
_PACKET = "16384"
"""Most bytes that the kernel passes to a shaped link at once."""
_WINDOW = 32_768
"""Most bytes of a connection that are under way over a shaped link. A window that grows fills the queue until packets are
dropped, and each one holds its connection up for the 0.2 s of TCP's timer: switches of a training cluster drop none."""
_QUEUE = "200ms"
"""Longest time that a packet waits in the queue of a shaped link: more than the windows of all hosts fill."""


def bridge_name(number: int) -> str:
    return f"stl{number}"


def port_name(number: int, host: str) -> str:
    """The bridge's end of a host's link."""
    return f"stl{number}{host}"


def gateway(number: int) -> str:
    """Address at which the hosts reach this machine: a service, a proxy."""
    return f"10.87.{number}.1"


def make_bridge(number: int) -> None:
    """A switch that this machine is plugged into, too."""
    name = bridge_name(number)
    _ip(
        f"link add {name} type bridge",
        f"address add {gateway(number)}/24 dev {name}",
        f"link set {name} up",
    )


def plug(number: int, host: str, pid: int, address: str, mbit: int) -> None:
    """Join the host whose process 1 is `pid`."""
    port = port_name(number, host)
    _ip(
        f"link add {port} type veth peer name {INTERFACE} netns {pid}",
        f"link set {port} master {bridge_name(number)}",
        f"link set {port} up",
    )
    _ip(f"address add {address}/24 dev {INTERFACE}", f"link set {INTERFACE} up", inside=pid)
    shape(number, host, pid, mbit)


def shape(number: int, host: str, pid: int, mbit: int, delay_ms: float = 0.0) -> None:
    """Set the link's bandwidth in Mbit/s in each direction; 0: unlimited. `delay_ms`: milliseconds that a packet takes from
    this host to another."""
    _limit_windows(pid, mbit > 0)
    for device, inside in ((port_name(number, host), []), (INTERFACE, ["nsenter", "-t", str(pid), "-n"])):
        limit = ["tbf", "rate", f"{mbit}mbit", "burst", _BURST, "latency", _QUEUE] if mbit else ["noqueue"]
        if delay_ms and device == INTERFACE:
            # One queue holds a packet and paces it; tbf beneath netem would drop what netem lets go in bursts.
            limit = ["netem", "delay", f"{delay_ms}ms", "limit", "10000", *(["rate", f"{mbit}mbit"] if mbit else [])]
        subprocess.run([*inside, "tc", "qdisc", "replace", "dev", device, "root", *limit], check=True)
        if mbit:
            # tbf cuts a packet that exceeds its burst into small ones, which costs a third of the cores' time.
            subprocess.run(
                [*inside, "ip", "link", "set", device, "gso_max_size", _PACKET, "gro_max_size", _PACKET], check=True
            )


def _limit_windows(pid: int, is_shaped: bool) -> None:
    """Limit the windows of the connections that a host opens from now on, or leave them to the kernel."""
    for name, usual in (("tcp_rmem", "4096 131072 33554432"), ("tcp_wmem", "4096 16384 4194304")):
        window = f"4096 {_WINDOW} {_WINDOW}" if is_shaped else usual
        subprocess.run(["nsenter", "-t", str(pid), "-n", "sysctl", "-qw", f"net.ipv4.{name}={window}"], check=True)


def can_delay() -> bool:
    """Whether the kernel can delay packets (netem)."""
    words = ["unshare", "-n", "sh", "-c", "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def cut(number: int, host: str) -> None:
    """Cut the link silently in both directions."""
    _ip(f"link set {port_name(number, host)} down")


def mend(number: int, host: str) -> None:
    """Packets arrive again."""
    _ip(f"link set {port_name(number, host)} up")


def unplug(number: int, hosts: Iterable[str]) -> None:
    """Take away what is there of these hosts' links."""
    _delete({port_name(number, host) for host in hosts})


def remove(number: int, hosts: Iterable[str]) -> None:
    """Take away what is there of a laboratory's links, and the bridge."""
    unplug(number, hosts)
    _delete({bridge_name(number)})


def _delete(names: set[str]) -> None:
    for name in sorted(names & present()):
        # Check=False: a host's end of it may be going this moment, with the host, and takes ours along.
        subprocess.run(["ip", "link", "delete", name], stderr=subprocess.DEVNULL, check=False)
    assert not names & present(), f"links {names & present()} cannot be deleted"


def present() -> set[str]:
    """Names of all links of this machine."""
    listed = subprocess.run(["ip", "-json", "link"], check=True, capture_output=True, text=True).stdout
    return {link["ifname"] for link in json.loads(listed)}


def _ip(*commands: str, inside: int | None = None) -> None:
    within = [] if inside is None else ["nsenter", "-t", str(inside), "-n"]
    subprocess.run([*within, "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
