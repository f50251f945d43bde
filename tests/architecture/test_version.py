"""`shardtune.__version__` is the only place that states the version; manifests, which cannot read it, agree with it."""

import re
from pathlib import Path

import yaml

import shardtune

ROOT = Path(__file__).parents[2]


def test_manifests_name_the_images_of_this_version() -> None:
    manifests = sorted((ROOT / "deploy" / "kubernetes").rglob("kustomization.yaml"))
    tags = {path.parent.name: re.findall(r"newTag: (\S+)", path.read_text()) for path in manifests}
    assert sum(map(len, tags.values())) > 0
    assert {name: versions for name, versions in tags.items() if set(versions) - {shardtune.__version__}} == {}


def test_the_chart_has_this_version() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/shardtune/Chart.yaml").read_text())
    # By default its images have the tag of appVersion.
    assert (chart["version"], chart["appVersion"]) == (shardtune.__version__, shardtune.__version__)
    values = yaml.safe_load((ROOT / "deploy/helm/shardtune/values.yaml").read_text())
    assert [image["tag"] for image in values["images"].values()] == ["", ""]
    assert f"ray=={values['workers']['ray']['version']}" in (ROOT / "constraints.txt").read_text().splitlines()
