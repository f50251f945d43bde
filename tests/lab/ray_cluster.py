"""Ray on the hosts: the head on `head`, with no processors to give, one node on each of the others; token authentication.

Without log monitors and autoscaler, which a worker does not use: it connects with `log_to_driver=False`.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab import processes
from tests.lab.hosts import Host

PORT = 6379
_START_S = 120.0
_MOST_TRIES = 3
_STORE_BYTES = 80_000_000
"""Size of each node's object store, about the least Ray takes; nothing large is ever put there."""


class RayCluster:
    """The daemons of one laboratory."""

    def __init__(self, head: Host, nodes: tuple[Host, ...], ranks: int):
        self._head, self._nodes, self._ranks = head, nodes, ranks
        self._folder = head.claim.folder / "ray"
        self.address = f"{head.address}:{PORT}"
        self.environment = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._folder / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            # One Python process per processor before anybody asked, on every host.
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
        }
        """Environment variables that every command and program of Ray needs."""

    def start(self) -> None:
        """Start the head, then all nodes at once; each command returns when its daemons are up."""
        self._folder.mkdir()
        token = self._folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self._start([self._head])
        self._start(self._nodes)

    def start_on(self, host: Host) -> None:
        """Start a host's daemons, once more after a power cut."""
        self._start([host])

    def _start(self, hosts: Sequence[Host]) -> None:
        begun = [(host, self._begin(host)) for host in hosts]
        for host, command in begun:
            tries = 1
            while code := command.wait(timeout=_START_S):
                if tries == _MOST_TRIES:
                    raise RuntimeError(f"Ray ended with {code} on {host.name}, {tries} times: {host.said('ray')}")
                # On a busy machine Ray gives up after 30 s on a daemon that still starts: two on one host are two nodes.
                processes.kill_all(host.living)
                command, tries = self._begin(host), tries + 1

    def _begin(self, host: Host) -> "subprocess.Popen[bytes]":
        is_head = host is self._head
        own = ["--head", f"--port={PORT}", "--include-dashboard=false", "--no-monitor"]
        role = own if is_head else [f"--address={self.address}"]
        amounts = [f"--num-cpus={0 if is_head else self._ranks}", "--num-gpus=0"]
        words = [str(Path(sys.executable).parent / "ray"), "start", *role, *amounts]
        words += [f"--node-ip-address={host.address}", f"--object-store-memory={_STORE_BYTES}"]
        words += ["--include-log-monitor=false"]
        words += ["--disable-usage-stats"] if is_head else []
        environment_variables = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        # The daemons must not think that they are a test's or a session's.
        return host.daemon("ray", ["env", *(f"--unset={name}" for name in _inherited()), *words], environment_variables)


def _inherited() -> list[str]:
    return [name for name in os.environ if name.startswith("RAY_")]
