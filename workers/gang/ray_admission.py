"""Checks before a Ray cluster is joined: it exists, and rejects requests without a token."""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping

from shardtune.workers.launchers.processes import without_secrets

_REACH_S = 5.0
_PROBE_S = 60.0
REMEDY = "Start the cluster (`ray start --head --port=6379`, with RAY_AUTH_MODE=token), or name its head with --ray-address HOST:PORT"


def require_answer(address: str) -> None:
    """Check that something listens at the Ray cluster's address. Without this check, Ray itself would try to connect
    for minutes.

    Raises:
        ValueError: the address cannot be reached from this process.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(
            f"ray_address ({address}) cannot be reached from {platform.node()}: {reason}. {REMEDY}"
        ) from None


def require_token(environment: Mapping[str, str]) -> None:
    """Check that this process has a token: without a token, anyone who reaches a port of the cluster may run programs.

    Raises:
        ValueError: this process has no token.
    """
    mode = environment.get("RAY_AUTH_MODE", "")
    if mode != "token":
        raise ValueError(
            f"RAY_AUTH_MODE ({mode or 'not set'}) must be token: in an open Ray cluster whoever reaches its ports runs programs "
            "on every host. Start all of the cluster with RAY_AUTH_MODE=token and a token (`ray get-auth-token --generate`)"
        )


def require_closed(address: str, patience_s: float = _PROBE_S) -> None:
    """Check that the Ray cluster rejects a request without a token.

    Raises:
        ValueError: the cluster accepts the request, or does not answer at all.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    environment = {**without_secrets(os.environ), "RAY_AUTH_MODE": "disabled"}
    try:
        check = subprocess.run(command, env=environment, capture_output=True, timeout=patience_s, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"ray_address ({address}) did not say within {patience_s:g} s whether it answers without a token. Look at the "
            "cluster's head (`ray status`), or try again when it is less busy"
        ) from None
    if check.returncode == 0:
        raise ValueError(
            f"ray_address ({address}) answers without a token: the cluster is open, and whoever reaches its ports runs programs on "
            "every host. Start all of it with RAY_AUTH_MODE=token"
        )
