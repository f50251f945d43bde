"""`shardtune.__version__` is the only place that states the version; manifests, which cannot read it, agree with it."""

import re
from pathlib import Path

import shardtune

ROOT = Path(__file__).parents[2]


def test_manifests_name_the_images_of_this_version() -> None:
    manifests = sorted((ROOT / "deploy" / "kubernetes").rglob("kustomization.yaml"))
    tags = {path.parent.name: re.findall(r"newTag: (\S+)", path.read_text()) for path in manifests}
    assert sum(map(len, tags.values())) > 0
    assert {name: versions for name, versions in tags.items() if set(versions) - {shardtune.__version__}} == {}
