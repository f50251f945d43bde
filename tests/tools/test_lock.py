"""Images install what is locked by hashes, in the versions of constraints.txt, and nothing else."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.installed_packages import brought_by
from tests.tools.lock import EXTRAS, FURTHER, RECIPE_EXTRAS, ROOT, path_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pinned(text: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Requirements of a file by name, each with its hashes."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    parts = [(Requirement(line.split(" --hash")[0].strip()), HASH.findall(line)) for line in lines]
    return {canonicalize_name(requirement.name): (requirement, hashes) for requirement, hashes in parts}


def version_of(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    assert specifier.operator == "=="
    return specifier.version


LOCKED = {name: pinned(path_of(name).read_text()) for name in FURTHER}
VERSIONS = {
    name: version_of(requirement) for name, (requirement, _) in pinned((ROOT / "constraints.txt").read_text()).items()
}


@pytest.mark.parametrize("name", LOCKED)
def test_a_lock_has_hashes_and_the_versions_that_are_tested_together(name: str) -> None:
    assert all(hashes for _, hashes in LOCKED[name].values())
    locked = {package: version_of(requirement) for package, (requirement, _) in LOCKED[name].items()}
    assert {package: version for package, version in locked.items() if package in VERSIONS} == {
        package: VERSIONS[package] for package in locked if package in VERSIONS
    }


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_whatever_its_image_needs(name: str) -> None:
    lines = PROJECT["dependencies"] + [
        line for extra in EXTRAS[name] for line in PROJECT["optional-dependencies"][extra]
    ]
    # Of the packages that are installed here; the tests' environment lacks what some extras bring.
    known = [line for line in lines if _is_installed(line)]
    assert len(known) >= 15
    assert brought_by(known) - {*LOCKED[name]} == set()
    assert {canonicalize_name(Requirement(line).name) for line in [*lines, *FURTHER[name]]} <= {*LOCKED[name]}


def test_what_builds_the_worker_is_what_the_worker_has() -> None:
    assert {package: str(requirement) for package, (requirement, _) in LOCKED["worker-build"].items()}.items() <= {
        package: str(requirement) for package, (requirement, _) in LOCKED["worker"].items()
    }.items()


@pytest.mark.parametrize("name", EXTRAS)
def test_an_image_takes_no_file_without_a_hash(name: str) -> None:
    text = (ROOT / f"deploy/containers/{name}.Containerfile").read_text().replace("\\\n", " ")
    commands = [part for line in text.splitlines() for part in line.split("&&") if "pip install" in part]
    *locked, own = [shlex.split(command) for command in commands]
    assert locked and all("--require-hashes" in words for words in locked)
    assert {"--no-index", "--no-deps", "--no-build-isolation", "."} <= {*own}


def _is_installed(line: str) -> bool:
    try:
        brought_by([line])
    except ModuleNotFoundError:
        return False
    return True


def test_each_lock_is_one_of_an_image() -> None:
    assert {path.stem for path in Path(ROOT / "locks").iterdir()} == {*FURTHER}


EXTRAS_OF_WORKERS = ("deploy/skypilot/worker.yaml", "deploy/dstack/worker.dstack.yml", "docs/how-to/deploy.md")


@pytest.mark.parametrize("place", EXTRAS_OF_WORKERS)
def test_a_worker_of_every_recipe_is_installed_with_the_extras_of_all(place: str) -> None:
    stated = re.search(r"shardtune\[(?:worker,)?([0-9a-z,]*8bit[0-9a-z,]*)\]", (ROOT / place).read_text())
    assert stated is not None
    assert {*stated[1].split(",")} == {*RECIPE_EXTRAS}, f"{place} lists other extras than the optimizers and float8"
