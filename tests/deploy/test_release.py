"""`deploy/release.sh` makes the same files of one commit, wherever and whenever it runs, and their lists are complete."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.long_run import IS_LONG

ROOT = Path(__file__).parents[2]
GIT = ("git", "-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
COMMITTED = {"GIT_AUTHOR_DATE": "2026-01-02T03:04:06Z", "GIT_COMMITTER_DATE": "2026-01-02T03:04:06Z"}


def checkout(folder: Path) -> Path:
    """Repository of one commit with the files of this one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "All"]):
        subprocess.run([*GIT, *arguments], cwd=folder, env=os.environ | COMMITTED, check=True)
    return folder


def release(folder: Path, *arguments: str, umask: int = 0o022) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHON": sys.executable}
    command = [str(folder / "deploy/release.sh"), *arguments]
    return subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not IS_LONG:
        pytest.skip("a minute of building: make test-long")
    folder = checkout(tmp_path_factory.mktemp("first") / "checkout")
    result = release(folder)
    assert result.returncode == 0, result.stderr
    return folder / "dist"


def test_another_checkout_of_the_commit_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    result = release(checkout(tmp_path / "second"), str(tmp_path / "out"), umask=0o077)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out/SHA256SUMS").read_text() == (made / "SHA256SUMS").read_text() == result.stdout


def test_each_file_has_its_checksum(made: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (made / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.iterdir() if path.name != "SHA256SUMS"
    }
    suffixes = {path.name.partition("-")[0]: path.suffix for path in made.iterdir() if path.suffix in (".whl", ".gz")}
    assert suffixes.keys() == {"shardtune"} and len(list(made.glob("shardtune-*"))) == 2


@pytest.mark.parametrize("image", ["service", "worker", "worker-build"])
def test_a_bill_of_materials_has_each_package_of_the_lock_with_its_hashes(made: Path, image: str) -> None:
    bill = json.loads((made / f"sbom-{image}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "shardtune")
    lock = (made / f"lock-{image}.txt").read_text()
    assert lock == (ROOT / f"locks/{image}.txt").read_text()
    locked = set(re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([\w.+]+)", lock, re.M))
    assert {(item["name"], item["version"]) for item in bill["components"]} == locked
    assert all(item["externalReferences"][0]["hashes"] for item in bill["components"])


def test_the_wheel_has_the_product_and_no_tests(made: Path) -> None:
    (wheel,) = made.glob("*.whl")
    names = ZipFile(wheel).namelist()
    assert "shardtune/service/app.py" in names
    assert not [name for name in names if name.split("/")[1] in ("tests", "benchmarks")]


def test_a_release_is_of_a_commit_and_in_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "checkout")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/other.whl").touch()
    taken = release(folder, str(tmp_path / "taken"))
    assert taken.returncode == 1 and "is not empty, and would mix two releases" in taken.stderr
    (folder / "service/stray.py").write_text("")
    changed = release(folder, str(tmp_path / "new"))
    assert changed.returncode == 1 and "changes that are in no commit" in changed.stderr
    assert not (tmp_path / "new").exists()
