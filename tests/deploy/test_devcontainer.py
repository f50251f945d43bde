"""The development container's file has the specification's fields, and names what the repository has."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes_validate", reason="`make check-deploy` installs the checkers")

import jsonschema

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(__file__).parent / "checks/schemas/devcontainer.json").read_text())


def configuration() -> dict[str, Any]:
    """Content of the file, whose comments stand on lines of their own."""
    text = (ROOT / ".devcontainer/devcontainer.json").read_text()
    content: dict[str, Any] = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    return content


def complaints(content: dict[str, Any]) -> list[str]:
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(content)]


def test_the_fields_are_those_of_the_specification() -> None:
    content = configuration()
    assert complaints(content) == []
    assert complaints(content | {"postCreatCommand": "make setup"}) != []
    assert complaints(content | {"forwardPorts": ["8470"]}) != []


def test_the_container_begins_with_commands_that_there_are() -> None:
    content = configuration()
    script = content["onCreateCommand"].removeprefix("sudo ")
    assert (ROOT / script).stat().st_mode & 0o111
    target = content["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"(?m)^{target}:", (ROOT / "Makefile").read_text())


def test_python_is_the_oldest_that_the_package_accepts() -> None:
    (version,) = re.findall(r":(\d+\.\d+)-", configuration()["image"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"].startswith(f">={version}")


def test_the_forwarded_port_is_the_services() -> None:
    (port,) = configuration()["forwardPorts"]
    assert list(configuration()["portsAttributes"]) == [str(port)]
    assert f"EXPOSE {port}" in (ROOT / "deploy/containers/service.Containerfile").read_text()
