"""`deploy/release.sh` makes the same files of one commit, wherever and whenever it runs, and their lists are complete."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from shardtune import __version__
from tests.support.long_run import IS_LONG

ROOT = Path(__file__).parents[2]
GIT = ("git", "-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
WHEEL_FOLDERS = ("api_schemas", "db", "service", "shardtune", "traces", "tuner", "workers")
COMMITTED = {"GIT_AUTHOR_DATE": "2026-01-02T03:04:06Z", "GIT_COMMITTER_DATE": "2026-01-02T03:04:06Z"}


def checkout(folder: Path) -> Path:
    """Repository of one commit with the files of this one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists() or (ROOT / name).is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    commit_all(folder)
    return folder


def commit_all(folder: Path) -> None:
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "All"]):
        subprocess.run([*GIT, *arguments], cwd=folder, env=os.environ | COMMITTED, check=True)


def release(
    folder: Path, *arguments: str, umask: int = 0o022, variables: Mapping[str, str] = {}
) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHON": sys.executable} | variables
    command = [str(folder / "deploy/release.sh"), *arguments]
    return subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True)


def small_checkout(folder: Path) -> Path:
    """Repository of one commit with what the checks before the build read."""
    for name in ("deploy/release.sh", "constraints.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    commit_all(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not IS_LONG:
        pytest.skip("a minute of building: make test-long")
    folder = checkout(tmp_path_factory.mktemp("first") / "checkout")
    result = release(folder)
    assert result.returncode == 0, result.stderr
    return folder / "dist"


def test_another_checkout_gives_the_same_bytes_whatever_its_user_set(made: Path, tmp_path: Path) -> None:
    folder, home = checkout(tmp_path / "a second"), tmp_path / "home"
    home.mkdir()
    (home / ".pydistutils.cfg").write_text("[egg_info]\ntag_build = .dev7\n")
    settings = {"tar.umask": "0077", "core.autocrlf": "true", "status.showUntrackedFiles": "no"}
    for name, value in settings.items():
        subprocess.run(["git", "config", name, value], cwd=folder, check=True)
    # Neither what git ignores nor what it is told to leave alone reaches a release.
    (folder / "service/.env").write_text("SECRET=1")
    (folder / "service/signing.key").write_text("SECRET")
    subprocess.run(["git", "update-index", "--assume-unchanged", "locks/service.txt"], cwd=folder, check=True)
    (folder / "locks/service.txt").write_text("other==1\n")
    variables = {
        "HOME": str(home), "GZIP": "-1", "TAR_OPTIONS": "--mode=0600", "SOURCE_DATE_EPOCH": "1", "TZ": "Asia/Tokyo",
        "LC_ALL": "C.UTF-8", "CDPATH": str(tmp_path),
    }  # fmt: skip
    result = release(folder, str(tmp_path / "the out"), umask=0o077, variables=variables)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "the out/SHA256SUMS").read_text() == (made / "SHA256SUMS").read_text() == result.stdout


def test_modes_depend_on_no_user(made: Path) -> None:
    """Root's tar keeps the modes of git's archive, others' takes umask's bits off: the bytes were two."""
    (wheel,), (sources,) = made.glob("*.whl"), made.glob("*.tar.gz")
    # RECORD has a mode of the tool's own.
    packed = [info for info in ZipFile(wheel).infolist() if not info.filename.endswith("/RECORD")]
    assert {info.external_attr >> 16 & 0o777 for info in packed} <= {0o644, 0o755}
    with tarfile.open(sources) as archive:
        assert {member.mode & 0o777 for member in archive} == {0o644, 0o755}


def test_the_sums_are_verified_wherever_the_files_lie(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "mirror")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=tmp_path / "mirror", check=True)


def test_each_file_has_its_checksum(made: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (made / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.iterdir() if path.name != "SHA256SUMS"
    }
    suffixes = {path.name.partition("-")[0]: path.suffix for path in made.iterdir() if path.suffix in (".whl", ".gz")}
    assert suffixes.keys() == {"shardtune"} and len(list(made.glob("shardtune-*"))) == 2


@pytest.mark.parametrize("image", ["service", "worker", "worker-build"])
def test_a_bill_of_materials_has_each_package_of_the_lock_with_its_hashes(made: Path, image: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = (made / f"sbom-{image}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    product = bill["metadata"]["component"]
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert (product["name"], product["version"]) == ("shardtune", __version__)
    assert [entry["license"]["id"] for entry in product["licenses"]] == ["Apache-2.0"]
    lock = (made / f"lock-{image}.txt").read_text()
    assert lock == (ROOT / f"locks/{image}.txt").read_text()
    locked = set(re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([\w.+]+)", lock, re.M))
    assert {(item["name"], item["version"]) for item in bill["components"]} == locked
    assert all(item["externalReferences"][0]["hashes"] for item in bill["components"])
    assert {item["purl"] for item in bill["components"]} == {f"pkg:pypi/{name}@{version}" for name, version in locked}


def test_the_wheel_has_each_file_of_the_product_and_no_other(made: Path) -> None:
    (wheel,) = made.glob("*.whl")
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "-z", *WHEEL_FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    product = set[str]()
    for name in filter(None, listed.stdout.split("\0")):
        path, shown = ROOT / name, name if name.startswith("shardtune/") else f"shardtune/{name}"
        if path.is_dir():
            # `shardtune/service` is a link to `service/`; the pages for agents are links to pages of docs/.
            pages = path.glob("*.md") if name.startswith("service/mcp/pages/") else ()
            product |= {f"{shown}/{page.name}" for page in pages}
        elif path.exists():
            product.add(shown)
    assert names == product


def test_the_metadata_is_that_of_the_project(made: Path) -> None:
    (wheel,) = made.glob("*.whl")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = f"shardtune-{__version__}.dist-info"
    metadata = message_from_bytes(ZipFile(wheel).read(f"{info}/METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("shardtune", __version__)
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    extras = project["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(extras)
    wanted = [Requirement(text) for text in project["dependencies"]]
    wanted += [Requirement(f'{text}; extra == "{extra}"') for extra in extras for text in extras[extra]]
    assert {str(Requirement(text)) for text in metadata.get_all("Requires-Dist", [])} == set(map(str, wanted))
    entry_points = ZipFile(wheel).read(f"{info}/entry_points.txt").decode()
    assert entry_points.split() == ["[console_scripts]", "shardtune", "=", "shardtune.service.cli:main"]
    assert f"{info}/licenses/LICENSE" in ZipFile(wheel).namelist()


def test_the_sources_are_an_archive_of_posix_and_build_the_same_wheel(made: Path, tmp_path: Path) -> None:
    (sources,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    with tarfile.open(sources) as archive:
        assert {(member.uid, member.gid, member.uname) for member in archive} == {(0, 0, "")}
        (made_at,) = {int(member.mtime) for member in archive}
        archive.extractall(tmp_path, filter="data")
    header = subprocess.run(["gzip", "-dc", sources], capture_output=True, check=True).stdout[257:265]
    assert header == b"ustar\x0000", "the standard of sdists asks for the format of POSIX"
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "built", "."]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(made_at)}
    subprocess.run(command, cwd=tmp_path / f"shardtune-{__version__}", env=environment, capture_output=True, check=True)
    assert (tmp_path / "built" / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_release_is_of_a_commit_and_in_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = small_checkout(tmp_path / "checkout")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/other.whl").touch()
    taken = release(folder, str(tmp_path / "taken"))
    assert taken.returncode == 1 and "is not empty, and would mix two releases; remove it" in taken.stderr
    on_file = release(folder, str(tmp_path / "taken/other.whl"))
    assert on_file.returncode == 1 and "other.whl is no folder; name another one" in on_file.stderr
    (folder / "stray.py").write_text("")
    changed = release(folder, str(tmp_path / "new"))
    assert changed.returncode == 1 and "changes that are in no commit" in changed.stderr
    assert not (tmp_path / "new").exists()
    helped = release(folder, "--help")
    assert (
        helped.returncode == 1
        and helped.stderr == "arguments (--help) must be one folder at most: deploy/release.sh [FOLDER]\n"
    )


def test_without_a_commit_of_its_own_the_remedy_is_named(tmp_path: Path) -> None:
    """Sources inside of another repository would get its commit."""
    repository = small_checkout(tmp_path / "other")
    (repository / "sources/deploy").mkdir(parents=True)
    shutil.copy(ROOT / "deploy/release.sh", repository / "sources/deploy")
    inside = release(repository / "sources")
    assert inside.returncode == 1 and f"{repository / 'sources'} is no checkout" in inside.stderr
    assert "clone the repository" in inside.stderr
    subprocess.run(["git", "init", "--quiet"], cwd=repository / "sources", check=True)
    fresh = release(repository / "sources")
    assert fresh.returncode == 1 and "has no commit, and a release is made from one" in fresh.stderr


def test_a_missing_program_or_package_is_named_with_its_remedy(tmp_path: Path) -> None:
    folder = small_checkout(tmp_path / "a checkout")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "git", "gzip", "realpath", "tar"):
        (programs / name).symlink_to(str(shutil.which(name)))
    without = release(folder, variables={"PATH": str(programs)})
    assert without.returncode == 1 and without.stderr.startswith("sha256sum is not installed; install it")
    pins = (folder / "constraints.txt").read_text()
    (folder / "constraints.txt").write_text(re.sub(r"^setuptools==.*$", "setuptools==1.0", pins, flags=re.M))
    commit_all(folder)
    other = release(folder)
    assert other.returncode == 1 and "not the 1.0 of constraints.txt; run `make release`" in other.stderr
    nowhere = release(folder, variables={"PYTHON": str(tmp_path / "python")})
    assert nowhere.returncode == 1 and "No such file or directory; run `make release`" in nowhere.stderr


def test_a_folder_without_sums_is_that_of_an_interrupted_release(made: Path) -> None:
    """The sums are written last: whoever finds them finds all files."""
    written = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert max(written, key=lambda name: written[name]) == "SHA256SUMS"
