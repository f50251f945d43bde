"""`python -m tests.tools.durations RUN.xml`: keep what the modules of a test run took, and write its page.

`RUN.xml` is pytest's (`--junitxml`). The order of the next run follows from durations.json (module_order).
"""

import json
import os
import platform
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from tests.tools.module_order import SECONDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "measurements" / "test-run.md"
BEGIN, END = "<!-- make durations: begin -->\n", "<!-- make durations: end -->\n"
SHOWN = 20


def module_of(classname: str) -> str:
    """The file of a test case, whose class name is that of its module, with a class where there is one."""
    parts = classname.split(".")
    while parts and not (ROOT / "/".join(parts)).with_suffix(".py").is_file():
        parts.pop()
    return "/".join(parts) + ".py"


def processor() -> str:
    """Name of the processor, as the kernel reports it."""
    names = [line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def page_of(modules: Counter[str], tests: Counter[str], elapsed_s: float) -> str:
    """The measured part of the page."""
    of = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytest", "pytest-xdist"))
    lines = [
        f"{len(tests)} tests in {elapsed_s / 60:.1f} min on {os.cpu_count()} cores ({processor()}, "
        f"Python {platform.python_version()}, {of}); {sum(tests.values()) / 60:.1f} min one after the other.",
        "",
        "| slowest modules | s |",
        "|---|---|",
        *(f"| `{name}` | {seconds:.0f} |" for name, seconds in modules.most_common(SHOWN)),
        "",
        "| slowest tests | s |",
        "|---|---|",
        *(f"| `{name}` | {seconds:.0f} |" for name, seconds in tests.most_common(SHOWN)),
    ]
    return "\n".join(lines) + "\n"


def main(run: Path) -> None:
    """Read the run, write both files."""
    suite = ElementTree.parse(run).getroot().find("testsuite")
    assert suite is not None
    modules: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for case in suite.iter("testcase"):
        module, seconds = module_of(case.attrib["classname"]), float(case.attrib["time"])
        modules[module] += seconds  # type: ignore[assignment]
        tests[f"{module}::{case.attrib['name']}"] += seconds  # type: ignore[assignment]
    recorded_seconds = json.loads(SECONDS.read_text()) | {name: round(seconds, 1) for name, seconds in modules.items()}
    present = {name: seconds for name, seconds in sorted(recorded_seconds.items()) if (ROOT / name).is_file()}
    SECONDS.write_text(json.dumps(present, indent=2) + "\n")
    before, _, after_begin = PAGE.read_text().partition(BEGIN)
    _, _, after = after_begin.partition(END)
    measured = page_of(modules, tests, float(suite.attrib["time"]))
    PAGE.write_text(f"{before}{BEGIN}{measured}{END}{after}")
    sys.stdout.write(measured)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
