"""The laboratory itself: hosts are apart, links are cut and mended, and nothing of it is left, however its maker ended."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.lab import requirements
from tests.lab.claim import NoLaboratory, Plan, folder_of
from tests.lab.hosts import Host
from tests.lab.laboratory import Laboratory, for_this_process
from tests.lab.links import bridge_name, present
from tests.lab.processes import is_dead, marked, state_of
from tests.support.long_run import WIDE, telling

LAB = [sys.executable, "-m", "tests.lab", "--lab", "251"]
"""A number that `for_this_process` never takes."""
RAY_NODES = [
    sys.executable,
    "-c",
    "import ray; ray.init(log_to_driver=False); print(*sorted(int(n['Resources'].get('CPU', 0)) for n in ray.nodes()))",
]
KINDS = ("net", "pid", "mnt", "uts")


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    requirements.require("slurm")
    yield
    if folder_of(251).exists():
        Laboratory.at(251).down()


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[Laboratory]:
    requirements.require("none")
    with for_this_process(hosts=2, ranks=1) as running_laboratory:
        yield running_laboratory


def namespaces(pids: set[int]) -> set[str]:
    names = set()
    for pid in pids:
        for kind in KINDS:
            with suppress(OSError):
                names.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return names - {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in KINDS}


@contextmanager
def kept_numbers(pids: set[int]) -> Iterator[set[str]]:
    """The namespaces of processes, open until the end: Linux gives the number of one that is gone to the next one."""
    with ExitStack() as opened:
        for pid in pids:
            for kind in KINDS:
                with suppress(OSError):
                    opened.enter_context(Path(f"/proc/{pid}/ns/{kind}").open("rb"))
        yield namespaces(pids)


def everybody() -> set[int]:
    return {pid for entry in Path("/proc").iterdir() if entry.name.isdigit() and not is_dead(pid := int(entry.name))}


def traces() -> dict[str, object]:
    links = {name for name in present() if name.startswith(bridge_name(251))}
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder_of(251)) in line]
    remaining = {
        "links": links,
        "mounts": mounts,
        "processes": marked(folder_of(251)),
        "folder": folder_of(251).exists(),
    }
    return {subject: actual for subject, actual in remaining.items() if actual}


def test_up_says_what_there_is_and_down_leaves_nothing_of_it():
    printed = subprocess.run(
        [*LAB, "up", "--hosts", "2", "--ranks", "2", "--inter-mbit", "200", "--engine", "slurm", "--json"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    answer = json.loads(printed)
    assert answer["up_s"] > 0 and {**answer, "up_s": 0} == {
        "hosts": [
            {"name": f"n{item}", "address": f"10.87.251.1{item}", "interface": "eth0", "ranks": 2} for item in range(2)
        ],
        "inter_mbit": 200,
        "engine": "slurm",
        "up_s": 0,
    }
    completed = subprocess.run([*LAB, "exec", "n1", "--", "srun", "-N2", "hostname"], check=True, capture_output=True)
    assert sorted(completed.stdout.split()) == [b"n0", b"n1"]
    with kept_numbers(marked(folder_of(251))) as own:
        assert len(own) >= 3 * len(KINDS)
        subprocess.run([*LAB, "down"], check=True)
        assert traces() == {} and not own & namespaces(everybody())


REACHED = ("251", "251/hosts", "251/head.pid", "251/n0.pid", "251/slurm/slurm.conf")
"""Files of a laboratory in the order in which `up` makes them."""


@pytest.mark.parametrize("reached", telling(REACHED, ["251/slurm/slurm.conf"]))
def test_down_finds_all_that_a_killed_up_left(reached):
    up = subprocess.Popen([*LAB, "up", "--hosts", "2", "--engine", "slurm"], start_new_session=True)
    while not (folder_of(251).parent / reached).exists():
        assert up.poll() is None
        time.sleep(0.0005)
    up.send_signal(signal.SIGKILL)
    up.wait()
    with kept_numbers(marked(folder_of(251))) as own:
        subprocess.run([*LAB, "down"], check=True)
        assert traces() == {} and not own & namespaces(everybody())


def test_a_number_is_taken_once_and_what_is_not_there_is_said():
    up = [*LAB, "up", "--hosts", "1"]
    subprocess.run(up, check=True, capture_output=True)
    again = subprocess.run(up, check=False, capture_output=True, text=True)
    assert again.returncode == 2 and "laboratory 251 is up already" in again.stderr
    wrong = subprocess.run([*LAB, "kill", "n7"], check=False, capture_output=True, text=True)
    assert wrong.returncode == 2 and "host 'n7' is not in the laboratory: n0" in wrong.stderr
    Laboratory.at(251).down()
    with pytest.raises(NoLaboratory, match="laboratory 251 is not up"):
        Laboratory.at(251)


def test_hosts_share_neither_names_nor_tmp_nor_processes(two_hosts):
    two_hosts.run("n0", ["bash", "-c", "echo > /tmp/mine; echo > /dev/shm/mine"])
    look = "hostname; ls /tmp/mine /dev/shm/mine 2>&1 | grep -c 'No such file'; ls -d /proc/[0-9]* | wc -l"
    name, absent, processes = two_hosts.run("n1", ["bash", "-c", look]).split()
    assert (name, absent) == ("n1", "2") and int(processes) < 8
    assert two_hosts.run("n1", ["getent", "hosts", "n0"]).split()[0] == two_hosts.host("n0").address


LISTEN = """
import socket
server = socket.create_server(("", 7000))
print(flush=True)
while True:
    server.accept()
"""
CALL = "import socket; socket.create_connection(('n0', 7000), 1).close()"


def reaches(laboratory: Laboratory) -> bool:
    call = laboratory.start("n1", [sys.executable, "-c", CALL], stderr=subprocess.DEVNULL)
    return call.wait() == 0


def test_a_link_is_cut_without_a_word_and_mended(two_hosts):
    listener = two_hosts.start("n0", [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
    listener.stdout.readline()
    assert reaches(two_hosts)
    two_hosts.cut("n1")
    assert not reaches(two_hosts) and listener.poll() is None
    two_hosts.restore("n1")
    assert reaches(two_hosts)
    listener.kill()


def test_a_host_is_frozen_and_runs_on_and_dies_with_all_that_is_on_it(two_hosts):
    nested = ["unshare", "--pid", "--fork", "--mount-proc", "sleep", "1000"]
    sleeping = two_hosts.start("n1", nested)
    host = two_hosts.host("n1")
    while len(host.find("sleep", "1000")) < 2:
        time.sleep(0.01)
    host.stop()
    assert {state_of(pid) for pid in host.living() | {host.pid}} == {"T"}
    two_hosts.restore("n1")
    assert "T" not in {state_of(pid) for pid in host.living() | {host.pid}}
    there = host.living()
    host.cut_power()
    assert sleeping.wait() != 0 and not host.is_up and not there & everybody()
    two_hosts.restore("n1")
    assert host.is_up and host.living() == set()
    assert two_hosts.run("n1", ["hostname"]) == "n1\n"


def test_what_an_owner_left_goes_with_the_next_laboratory(two_hosts):
    remaining = "from tests.lab.laboratory import for_this_process as f; print(f(1, 1).host('n0').pid)"
    first = int(subprocess.run([sys.executable, "-c", remaining], check=True, capture_output=True, text=True).stdout)
    assert not is_dead(first)
    with for_this_process(hosts=0, ranks=1):
        assert is_dead(first) and two_hosts.host("n0").is_up


def plant_failures(monkeypatch, failures):
    """Play `ray start`: on each host it fails so many times and leaves a daemon behind, as Ray does, then it succeeds."""
    daemon = Host.daemon
    left = dict(failures)

    def planted(host, name, words, environment):
        left[host.name] = left.get(host.name, 0) - 1
        played = "echo the raylet took its time; sleep 1000 & exit 1" if left[host.name] >= 0 else "sleep 1000 &"
        return daemon(host, name, ["sh", "-c", played], environment)

    monkeypatch.setattr(Host, "daemon", planted)


def test_ray_that_gives_up_on_a_host_is_started_there_again_without_what_it_left(monkeypatch):
    plant_failures(monkeypatch, {"n0": 2})
    with for_this_process(hosts=2, ranks=1, engine="ray") as laboratory:
        assert [len(host.find("sleep")) for host in laboratory.hosts] == [1, 1, 1]


def test_a_laboratory_that_does_not_come_up_says_why_and_leaves_nothing(monkeypatch):
    plant_failures(monkeypatch, {"n1": 3})
    with pytest.raises(RuntimeError, match=r"on n1, 3 times: (the raylet took its time\n){3}"):
        Laboratory.up(Plan(hosts=2, engine="ray"), 251)
    assert traces() == {}


@WIDE
def test_a_cluster_of_ray_has_its_hosts_and_asks_for_a_token():
    requirements.require("ray")
    with for_this_process(hosts=1, ranks=2, engine="ray") as running_laboratory:
        assert running_laboratory.run("head", RAY_NODES).split() == ["0", "2"]
        open_call = ["env", "--unset=RAY_AUTH_MODE", sys.executable, "-m", "ray.scripts.scripts", "health-check"]
        rejected = running_laboratory.start(
            "n0", [*open_call, "--address", running_laboratory.engine.address], stderr=subprocess.PIPE
        )
        assert b"AuthenticationError" in rejected.communicate()[1] and rejected.returncode
