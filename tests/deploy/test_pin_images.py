"""`deploy/pin-images.sh` names every image of others by the digest that its registry says, and again by a newer one."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.checks.images import images

DEPLOY = Path(__file__).parents[2] / "deploy"
OTHERS = (
    "docker.io/grafana/grafana:12.1.0",
    "docker.io/library/debian:bookworm-slim",
    "docker.io/library/postgres:17",
    "docker.io/prom/prometheus:v3.5.0",
)
SKOPEO = """#!/bin/sh
for image in "$@"; do :; done
printf '%s\\n' "$DIGEST" | sed "s|IMAGE|$(printf %s "$image" | sha256sum | cut -c1-32)|"
"""
"""Stands for the registries, which tests do not reach: each image has a digest of its own."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    (tmp_path / "skopeo").write_text(SKOPEO)
    (tmp_path / "skopeo").chmod(0o700)
    return Path(shutil.copytree(DEPLOY, tmp_path / "deploy"))


def pin(deploy: Path, digest: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PATH": f"{deploy.parent}:{os.environ['PATH']}", "DIGEST": digest}
    return subprocess.run([DEPLOY / "pin-images.sh", deploy], env=environment, capture_output=True, text=True)


def test_every_image_of_others_is_named_by_its_digest_and_a_newer_one_replaces_it(copied: Path) -> None:
    for rest in ("a" * 32, "b" * 32):
        done = pin(copied, f"sha256:IMAGE{rest}")
        assert done.returncode == 0, done.stderr
        pinned = dict(line.split("@") for line in done.stdout.split())
        assert sorted(pinned) == sorted(OTHERS) and len({*pinned.values()}) == len(OTHERS)
        assert images(copied) == []
        services = yaml.safe_load((copied / "compose/compose.yaml").read_text())["services"].values()
        named = {service["image"] for service in services if "/" in service["image"]}
        named.add(yaml.safe_load((copied / "helm/shardtune/values.yaml").read_text())["postgres"]["image"])
        for file in (copied / "containers").glob("*.Containerfile"):
            named |= {line.partition("=")[2] for line in file.read_text().splitlines() if line.startswith("ARG BASE=")}
        assert named == {f"{image}@{digest}" for image, digest in pinned.items()}


def test_what_is_no_digest_changes_nothing(copied: Path) -> None:
    before = (copied / "compose/compose.yaml").read_text()
    done = pin(copied, "manifest unknown")
    assert done.returncode != 0 and "is no SHA-256" in done.stderr
    assert (copied / "compose/compose.yaml").read_text() == before
