"""A builder beside planted secrets puts none into the sources from which both images are built.

The stage `source` is built on nothing, so that this needs neither the network nor a base image.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.build_context import CONTAINERFILES, IGNORE_FILES, PLANTED, SECRET, copy_with_secrets
from tests.support.requirements import missing


@pytest.mark.parametrize("ignore_file", IGNORE_FILES)
@pytest.mark.parametrize("containerfile", CONTAINERFILES, ids=lambda path: path.stem)
def test_no_planted_secret_is_in_the_sources_of_an_image(containerfile: Path, ignore_file: str, tmp_path: Path) -> None:
    if os.getuid() or shutil.which("buildah") is None:
        missing("buildah, with root's rights")
    checkout = copy_with_secrets(tmp_path / "checkout")
    for other in {*IGNORE_FILES} - {ignore_file}:
        (checkout / other).unlink()
    store = ["buildah", "--storage-driver=vfs", f"--root={tmp_path}/root", f"--runroot={tmp_path}/run"]

    def buildah(*words: str) -> str:
        done = subprocess.run([*store, *words], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.split()[-1] if done.stdout else ""

    file = f"--file=deploy/containers/{containerfile.name}"
    buildah("build", "--isolation=chroot", "--pull=never", "--target=source", "--tag=sources", file, str(checkout))
    container = buildah("from", "localhost/sources")
    root = Path(buildah("mount", container)) / "source"
    try:
        assert (root / "shardtune/service").is_symlink() and (root / "shardtune/service/app.py").is_file()
        assert not [name for name in PLANTED if (root / name).exists()]
        texts = (path.read_bytes() for path in root.rglob("*") if path.is_file())
        assert not any(SECRET.encode() in text for text in texts)
    finally:
        buildah("umount", container)
