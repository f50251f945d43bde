"""What `pip install shardtune` brings without an extra: each package is stated here, so that a heavy one is a decision."""

import tomllib
from pathlib import Path

from tests.support.installed_packages import brought_by

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
# docs/measurements/light-install.md says how large they are, and what needs the largest.
BASE = {
    *("annotated-doc", "annotated-types", "anyio", "certifi", "filelock", "h11", "httpcore", "httpx", "idna"),
    *("markdown-it-py", "mdurl", "numpy", "psutil", "pydantic", "pydantic-core", "pydantic-settings", "pygments"),
    *("python-dotenv", "pyyaml", "rich", "shellingham", "typer", "typing-extensions", "typing-inspection"),
}


def test_the_base_installation_brings_the_stated_packages_alone():
    assert brought_by(PROJECT["dependencies"]) == BASE


def test_an_added_package_would_be_seen():
    assert brought_by([*PROJECT["dependencies"], "jinja2>=3.1"]) - BASE == {"jinja2", "markupsafe"}
