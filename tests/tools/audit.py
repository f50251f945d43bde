"""`python -m tests.tools.audit`: known faults of the packages in constraints.txt, by pip-audit. Part of `make check`.

Asks at most once a day, or when the versions change: each answer takes seconds. Where the index cannot be reached the
audit is left out and says so. With SHARDTUNE_AUDIT_REQUIRED, which CI sets, that is a failure.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
_VERSIONS = ROOT / "constraints.txt"
_DONE = ROOT / ".venv" / ".audited"
_INDEX = "https://pypi.org/pypi"
_ASKED_FIRST = "fastapi"
_A_DAY_S = 24 * 3600
_EXCEPTIONS: dict[str, str] = {}
"""Faults that do not concern us, by their id, each with the reason."""


def main() -> int:
    """The exit code."""
    if _DONE.exists() and _DONE.stat().st_mtime > max(_VERSIONS.stat().st_mtime, time.time() - _A_DAY_S):
        print("pip-audit: the versions are those of the last audit, less than a day ago")
        return 0
    if (why := _why_not()) is not None:
        print(f"pip-audit: left out, since {_INDEX} {why}")
        return 1 if os.environ.get("SHARDTUNE_AUDIT_REQUIRED") else 0
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(_VERSIONS), "--no-deps", "--disable-pip"]
    command += [part for name in _EXCEPTIONS for part in ("--ignore-vuln", name)]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == 0:
        _DONE.touch()
    return code


def _why_not() -> str | None:
    """Reason why the index does not list a version's known faults; a mirror of packages need not have that."""
    version = next(line for line in _VERSIONS.read_text().splitlines() if line.startswith(f"{_ASKED_FIRST}=="))
    try:
        answer = httpx.get(f"{_INDEX}/{version.replace('==', '/')}/json", timeout=5)
    except httpx.HTTPError as error:
        return f"cannot be reached ({type(error).__name__})"
    if answer.is_success and "vulnerabilities" in answer.json():
        return None
    return f"knows nothing of {version} ({answer.status_code})"


if __name__ == "__main__":
    sys.exit(main())
