"""systemd units, container files and shell scripts: each by the field's own checker."""

import re
import shutil
import tempfile
from pathlib import Path

from tests.deploy.checks.programs import complaints, failures

UNITS = Path("etc/systemd/system")
_SYSTEM = Path("/usr/lib/systemd")


def systemd(deploy: Path) -> list[str]:
    """Check units with `systemd-analyze verify`, in a root that holds the programs they start."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(_SYSTEM / "system", root / "usr/lib/systemd/system", symlinks=True)
        (root / "lib").symlink_to("usr/lib")
        shutil.copytree(deploy / "systemd", root / UNITS)
        for unit in (deploy / "systemd").glob("*.service"):
            for program in re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.MULTILINE):
                _stand_in(root / program.lstrip("/"))
        names = sorted(unit.name for unit in (deploy / "systemd").iterdir())
        return complaints(["systemd-analyze", "verify", f"--root={root}", "--man=no", *names], root)


def exposure(deploy: Path) -> list[str]:
    """Rate by `systemd-analyze security` what a unit leaves open to its program, from 0 (nothing) to 10."""
    wrong = []
    for unit in sorted((deploy / "systemd").glob("*.service")):
        # Threshold in tenths. Ranks need devices, compilers and namespaces; the service needs its state and the network.
        most = 20 if unit.name == "shardtune-service.service" else 60
        words = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={most}", str(unit)]
        wrong += failures(words, deploy)
    return wrong


def _stand_in(program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)


def containers(deploy: Path) -> list[str]:
    """Check Containerfiles with hadolint, shellcheck's rules for RUN lines included."""
    files = sorted(map(str, (deploy / "containers").glob("*.Containerfile")))
    return complaints(["hadolint", "--no-color", "--failure-threshold=style", *files], deploy)


def scripts(deploy: Path) -> list[str]:
    """Check shell scripts with shellcheck: every file that begins with a shell's name."""
    shells = [
        path for path in sorted(deploy.rglob("*")) if path.is_file() and path.read_bytes().startswith(b"#!/bin/bash")
    ]
    return complaints(["shellcheck", *map(str, shells)], deploy)
