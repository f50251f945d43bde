"""The compose file: by the specification's schema, and by podman-compose, which fills in variables and follows references."""

import json
import tempfile
from pathlib import Path

import jsonschema
import yaml

from tests.deploy.checks.programs import failures

_SCHEMA = json.loads((Path(__file__).with_name("schemas") / "compose.json").read_text())


def compose(deploy: Path) -> list[str]:
    """Check that the fields are the specification's and that every reference resolves."""
    path = deploy / "compose/compose.yaml"
    content = yaml.safe_load(path.read_text())
    checker = jsonschema.Draft7Validator(_SCHEMA)
    wrong = [f"{'.'.join(map(str, error.path))}: {error.message[:300]}" for error in checker.iter_errors(content)]
    return wrong or [*_dangling(content, path.parent), *_read_by_podman(path)]


def _dangling(content: dict, folder: Path) -> list[str]:
    """References that podman-compose does not follow: services, secrets, volumes, files of ours."""
    actual = []
    for name, service in content["services"].items():
        actual += [
            f"{name}: no service {other}" for other in service.get("depends_on", []) if other not in content["services"]
        ]
        actual += [f"{name}: no secret {item}" for item in service.get("secrets", []) if item not in content["secrets"]]
        for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
            recorded = (folder / source).exists() if source.startswith(".") else source in content["volumes"]
            actual += [] if recorded else [f"{name}: no volume {source}"]
    return actual


def _read_by_podman(path: Path) -> list[str]:
    """podman itself is not asked for anything but its version."""
    with tempfile.TemporaryDirectory() as folder:
        podman = Path(folder) / "podman"
        podman.write_text("#!/bin/sh\necho podman version 5.4.0\n")
        podman.chmod(0o755)
        words = [
            "podman-compose",
            f"--podman-path={podman}",
            "--profile=worker",
            "--profile=monitoring",
            "-f",
            str(path),
        ]
        example = (path.parent / "env.example").read_text().split()
        values = {line.removesuffix("="): "a" * 32 for line in example if line.endswith("=")}
        return failures([*words, "config"], path.parent, values)
