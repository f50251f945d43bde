"""`python -m tests.tools.lock`: what the images install, with the hash of each file that pip may take, written to locks/.

Versions are those of constraints.txt; uv resolves them for every Linux and Python. `--check` writes nothing and fails where
the locks are others. Asks the package index.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shardtune.api_schemas.training.float8 import FLOAT8_EXTRA
from shardtune.api_schemas.training.optimizers import OPTIMIZERS

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
RECIPE_EXTRAS = tuple(sorted({FLOAT8_EXTRA, *(o.extra for o in OPTIMIZERS.values() if o.extra is not None)}))
"""Extras with the packages of optimizers and numerical formats, which a worker needs to train with any of them."""
EXTRAS = {"service": ("service", "telemetry", "mcp"), "worker": ("worker", "ray", *RECIPE_EXTRAS)}
"""Extras of the project that each image has."""
FURTHER = {
    # What builds the project itself.
    "service": ("setuptools", "wheel"),
    # KubeRay's probes and jobs ask Ray's dashboard.
    "worker": ("setuptools", "wheel", "ray[default]"),
    # DeepSpeed comes as its sources, whose build looks for torch: these are installed before.
    "worker-build": ("setuptools", "wheel", "torch"),
}
"""Requirements of each lock beyond the project's."""
_UV = Path(sys.executable).with_name("uv")
_OPTIONS = ("--universal", "--python-version=3.11", "--generate-hashes", "--no-annotate", "--no-header", "--quiet")
_BUILDS_HERE = ("--no-build-isolation", f"--python={sys.executable}")
"""Options for what comes as sources: its metadata is made in this environment, which has torch."""


def main() -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory() as folder:
        made = {name: _locked(name, Path(folder)) for name in FURTHER}
    if "--check" not in sys.argv:
        LOCKS.mkdir(exist_ok=True)
        for name, text in made.items():
            path_of(name).write_text(text)
        return 0
    stale = [name for name, text in made.items() if not path_of(name).exists() or path_of(name).read_text() != text]
    for name in stale:
        print(f"{path_of(name).relative_to(ROOT)} is not what constraints.txt asks for; run `make locks`")
    return 1 if stale else 0


def path_of(name: str) -> Path:
    """File of a lock."""
    return LOCKS / f"{name}.txt"


def _locked(name: str, folder: Path) -> str:
    """Text of a lock, made anew: an earlier one would keep its versions."""
    further, made = folder / f"{name}.in", folder / f"{name}.txt"
    further.write_text("".join(f"{line}\n" for line in FURTHER[name]))
    project = [f"--extra={extra}" for extra in EXTRAS.get(name, ())]
    inputs = [str(further), *([str(ROOT / "pyproject.toml")] if project else [])]
    constraints = [f"--constraint={ROOT / 'constraints.txt'}"]
    if name == "worker-build":
        # The same files as in the whole lock, which is made before.
        constraints = [f"--constraint={_versions_of(folder / 'worker.txt')}"]
    _compile([*inputs, *project, *constraints, f"--output-file={made}"])
    return made.read_text()


def _versions_of(lock: Path) -> Path:
    """Constraints with the versions of a lock."""
    versions = lock.with_suffix(".versions")
    lines = (line.removesuffix(" \\") for line in lock.read_text().splitlines() if not line.startswith(" "))
    versions.write_text("".join(f"{line}\n" for line in lines))
    return versions


def _compile(words: Sequence[str]) -> None:
    environment = os.environ | {"DS_IGNORE_CUDA_DETECTION": "1"}
    subprocess.run([_UV, "pip", "compile", *_OPTIONS, *_BUILDS_HERE, *words], cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
