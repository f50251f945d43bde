"""Requirements of a laboratory, and skips of tests on machines that lack them."""

import importlib.util
import os
import shutil
import subprocess

from tests.lab import slurm
from tests.support.requirements import missing


def lacking(engine: str) -> str | None:
    """The first thing that is not there, in words; None: a laboratory with that engine can be made."""
    if os.getuid() != 0:
        return "root, for namespaces and links"
    programs = ("ip", "tc", "unshare", "nsenter", "setpriv", *(slurm.NEEDS if engine == "slurm" else ()))
    absent = [name for name in programs if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} (tests/setup-machine.sh installs them)"
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        return "the package ray (pip install 'shardtune[ray]')"
    namespaces = subprocess.run(["unshare", "-m", "-u", "-p", "-n", "-f", "true"], capture_output=True, check=False)
    return "the right to make namespaces" if namespaces.returncode else None


def require(engine: str) -> None:
    """Skip a test that cannot have such a laboratory; fail it in CI."""
    if without := lacking(engine):
        missing(without)
