"""`python -m tests.deploy.checks`: what is wrong in deploy/; exit code 1 where anything is."""

import sys
from pathlib import Path

from tests.deploy.checks.registry import CHECKS

DEPLOY = Path(__file__).parents[3] / "deploy"


def main() -> int:
    """Run all checks."""
    wrong = [f"{name}: {item}" for name, check in CHECKS.items() for item in check(DEPLOY)]
    print("\n".join(wrong) or f"deploy/: {', '.join(CHECKS)}: nothing to complain about")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
