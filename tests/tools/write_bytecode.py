"""Bytecode of everything that the service and the workers import, written once by `make setup`.

Run as `python -m tests.tools.write_bytecode`. Container images often set PYTHONDONTWRITEBYTECODE. Without this step each
command would compile its imports anew there, which took `shardtune best` 18 s in place of 9 s.
"""

import importlib
import pkgutil
import subprocess
import sys

PACKAGES = ("shardtune.service", "shardtune.workers")
"""Packages whose modules are imported, each in a process of its own."""
_LEFT_OUT = ("__main__", ".ray", "migrations")
"""Parts of the names of modules that start something when they are imported, or that few users need."""


def import_all(package: str) -> None:
    """Import all modules of a package."""
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not any(part in module.name for part in _LEFT_OUT):
            importlib.import_module(module.name)


def main() -> int:
    """Import each package in a process of its own; returns the exit status of the first that failed, else 0."""
    if sys.argv[1:]:
        import_all(sys.argv[1])
        return 0
    # Libraries warn about GPUs and extensions that are missing, which matters to no setup.
    processes = [
        subprocess.Popen([sys.executable, "-m", __spec__.name, package], stderr=subprocess.PIPE, text=True)
        for package in PACKAGES
    ]
    # All are waited for: one that outlives a failed setup would write while the next setup installs.
    outputs = [process.communicate()[1] for process in processes]
    statuses = [process.returncode for process in processes]
    for status, errors in zip(statuses, outputs, strict=True):
        if status:
            print(errors, file=sys.stderr)
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
