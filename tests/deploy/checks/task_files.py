"""Task files of SkyPilot and dstack: their scripts by shellcheck. `make test-consumers` reads the files by their own code."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.deploy.checks.programs import complaints


def task_files(deploy: Path) -> list[str]:
    """Check each script of a task file, and that no key stands in one."""
    wrong = []
    for path in (deploy / "skypilot/worker.yaml", deploy / "dstack/worker.dstack.yml"):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / path.parent.name
            script.write_text("#!/bin/bash\n" + "\n".join(_scripts(path)))
            wrong += complaints(["shellcheck", str(script)], Path(folder))
    return wrong


def _scripts(path: Path) -> Iterator[str]:
    content = yaml.safe_load(path.read_text())
    # The launcher sets the variables that a file declares.
    declared = content.get("envs") or [variable.partition("=")[0] for variable in content.get("env", ())]
    yield "".join(f': "${{{name}:?}}"\n' for name in (*declared, *content.get("secrets", ())))
    yield from content.get("commands") or (content["setup"], content["run"])
