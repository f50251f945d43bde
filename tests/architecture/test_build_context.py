"""An image holds the packages and nothing that lies beside them; `tests/deploy/test_build_context.py` builds for real."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.build_context import (
    CONTAINERFILES,
    IGNORE_FILES,
    PLANTED,
    REPOSITORY,
    copied_names,
    copy_with_secrets,
    sent_to_builder,
)

PACKAGES = ("api_schemas", "db", "service", "shardtune", "traces", "tuner", "workers")
PAGES = ("docs/explanation", "docs/how-to", "docs/reference", "docs/tutorials")
FILES = ("LICENSE", "README.md", "pyproject.toml")
LOCKS = {"service": ("locks/service.txt",), "worker": ("locks/worker-build.txt", "locks/worker.txt")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_secrets(tmp_path_factory.mktemp("checkout"))


def test_every_builder_reads_the_same_rules() -> None:
    assert len({(REPOSITORY / name).read_text() for name in IGNORE_FILES}) == 1


@pytest.mark.parametrize("ignore_file", IGNORE_FILES)
def test_a_builder_sees_the_packages_and_no_secret_beside_them(checkout: Path, ignore_file: str) -> None:
    sent = sent_to_builder(checkout, ignore_file)
    assert sent & {*PLANTED} == set()
    tracked = subprocess.run(
        ["git", "-C", REPOSITORY, "ls-files", *PACKAGES, *PAGES, *FILES, "locks/*.txt"], capture_output=True, text=True
    )
    assert sent == {*tracked.stdout.split()}


@pytest.mark.parametrize("containerfile", CONTAINERFILES, ids=lambda path: path.stem)
def test_an_image_copies_by_name_and_keeps_no_sources(containerfile: Path) -> None:
    # Only the service answers agents, who read its pages.
    pages = PAGES if containerfile.stem == "service" else ()
    assert sorted(copied_names(containerfile)) == sorted((*FILES, *LOCKS[containerfile.stem], *PACKAGES, *pages))
    _, *stages = re.split(r"^FROM ", containerfile.read_text(), flags=re.MULTILINE)
    assert len(stages) >= 3 and stages[0].startswith("scratch AS source\n")
    assert re.findall(r"^(?:COPY|ADD) .*", stages[-1], re.MULTILINE) == [
        "COPY --from=build /opt/shardtune /opt/shardtune"
    ]
    # What the last stage is built upon copies nothing, either.
    bases = [stage for stage in stages if stage.split()[2:3] == [stages[-1].split()[0]]]
    assert all("COPY" not in base and "ADD" not in base for base in bases)


@pytest.mark.parametrize(
    "name", ["deploy/compose/.env", "deploy/compose/worker.key", "metrics.key", "tls.pem", ".env.local"]
)
def test_git_ignores_secrets(name: str) -> None:
    assert subprocess.run(["git", "-C", REPOSITORY, "check-ignore", "--quiet", name], check=False).returncode == 0


def test_compose_reads_its_secrets_outside_of_the_checkout() -> None:
    compose = yaml.safe_load((REPOSITORY / "deploy/compose/compose.yaml").read_text())
    assert [*compose["secrets"]] == ["metrics_key"]
    for secret in compose["secrets"].values():
        assert re.fullmatch(r"\$\{SHARDTUNE_SECRETS:-/etc/shardtune/compose\}/[a-z]+\.key", secret["file"])
    mounts = [volume for service in compose["services"].values() for volume in service.get("volumes", [])]
    assert all(mount.startswith("../monitoring/") for mount in mounts if mount.startswith("."))
