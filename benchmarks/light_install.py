"""Measure the installation of the built wheel alone: megabytes by package, seconds, and seconds of commands.

`python -m benchmarks.light_install [--extra mcp] [--uv PATH] [--runs N] [--beside COMMIT]` builds the wheel of this
checkout and installs it into new folders, so it needs the package index. Sizes leave out pip and setuptools, which an
environment begins with. `--beside` measures the commands of another commit, too, in turns with those of this checkout.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
_TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils")
_COMMANDS = {
    "predict": ("shardtune", "predict", "llama-3.1-8b", "--cluster", "8xh100"),
    "--help": ("shardtune", "--help"),
    "import": ("python", "-c", "import shardtune as st"),
    "python": ("python", "-c", ""),
}
"""Timed commands by their names in the output; the last one starts Python alone."""
_MB = 1e6


class Stopwatch:
    """Seconds, and seconds of a processor in ended children, since it was made: other programs lengthen only the first."""

    def __init__(self) -> None:
        self._begin = self._now()

    def read(self) -> tuple[float, float]:
        """Wall and processor seconds so far."""
        wall, processor = self._now()
        return wall - self._begin[0], processor - self._begin[1]

    def _now(self) -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.perf_counter(), used.ru_utime + used.ru_stime


def sizes_of(packages: Path) -> tuple[Counter[str], int]:
    """Bytes of each entry of a `site-packages` folder without pip and setuptools, and the bytes of bytecode among them."""
    sizes, bytecode = Counter[str](), 0
    for path in packages.rglob("*"):
        name = path.relative_to(packages).parts[0]
        if path.is_file() and name.split("-")[0] not in _TOOLS:
            sizes[name] += path.stat().st_size
            bytecode += path.stat().st_size if path.suffix == ".pyc" else 0
    return sizes, bytecode


def build_wheel(folder: Path, commit: str = "HEAD") -> Path:
    """Build the wheel of a commit from a copy of its files, so that nothing of a working tree gets into it."""
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    subprocess.run(["git", "checkout", "--quiet", commit], check=True, cwd=source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)], check=True)
    return next(folder.glob("shardtune-*.whl"))


def install(folder: Path, wheel: Path, extra: str | None, uv: str | None) -> tuple[float, float]:
    """Install the wheel with the versions of `constraints.txt` into `timed`; wall and processor seconds.

    The package index may be slow, so a first installation fills the client's cache and the second one is timed.
    """
    asked = f"{wheel}[{extra}]" if extra else str(wheel)
    constraints = str(ROOT / "constraints.txt")
    seconds = (0.0, 0.0)
    for attempt in ("first", "timed"):
        target = folder / attempt
        environment = dict(os.environ, UV_TOOL_DIR=str(target), UV_TOOL_BIN_DIR=str(target / "bin"))
        if uv:
            command = [
                uv,
                "tool",
                "install",
                "--quiet",
                "--force",
                "--python",
                sys.executable,
                "-c",
                constraints,
                asked,
            ]
        else:
            subprocess.run([sys.executable, "-m", "venv", str(target)], check=True)
            command = [str(target / "bin/python"), "-m", "pip", "install", "--quiet"]
            command += ["--disable-pip-version-check", "-c", constraints, asked]
        watch = Stopwatch()
        subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
        seconds = watch.read()
    return seconds


def seconds_in_turns(programs: Sequence[Path], command: Sequence[str], runs: int) -> list[list[tuple[float, float]]]:
    """Wall and processor seconds of a command for each folder of programs, in turns. A first run, which compiles what the
    installer did not, counts nowhere."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    seconds: list[list[tuple[float, float]]] = [[] for _ in programs]
    for _ in range(runs + 1):
        for folder, timed in zip(programs, seconds, strict=True):
            watch = Stopwatch()
            subprocess.run(
                [str(folder / command[0]), *command[1:]],
                check=True,
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd=folder,
            )
            timed.append(watch.read())
    return [timed[1:] for timed in seconds]


def print_seconds(programs: dict[str, Path], runs: int) -> None:
    """Time each command in each installation, and print medians and spreads."""
    for name, command in _COMMANDS.items():
        for commit, timed in zip(programs, seconds_in_turns([*programs.values()], command, runs), strict=True):
            for unit, values in (("seconds", [wall for wall, _ in timed]), ("of a core", [core for _, core in timed])):
                spread = f"{min(values):.3f} to {max(values):.3f}"
                print(f"{commit} {name}, {unit}: median {median(values):.3f}, {spread} in {len(values)} runs")


def installed_programs(folder: Path) -> Path:
    """Return the folder in which an installation has Python and its own programs."""
    return next(path.parent for path in folder.rglob("bin/python"))


def main(arguments: list[str] | None = None) -> None:
    """Build, install, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extra", help="an extra of pyproject.toml, such as mcp (default: none)")
    parser.add_argument("--uv", help="path of `uv`: install by `uv tool install` instead of pip")
    parser.add_argument("--runs", type=int, default=7, help="timed runs of each command")
    parser.add_argument("--beside", metavar="COMMIT", help="another commit whose commands are timed, too")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="light-install-"))
    try:
        wheel = build_wheel(folder)
        wall, processor = install(folder, wheel, options.extra, options.uv)
        (packages,) = (folder / "timed").rglob("site-packages")
        sizes, bytecode = sizes_of(packages)
        print(
            f"wheel {wheel.stat().st_size / _MB:.1f} MB, installed in {wall:.1f} s, {processor:.1f} s of a core (cached)"
        )
        print(f"{sum(sizes.values()) / _MB:.1f} MB, of which bytecode {bytecode / _MB:.1f} MB")
        for name, size in sizes.most_common():
            print(f"{name:32}{size / _MB:7.2f} MB")
        programs = {"now": installed_programs(folder / "timed")}
        if options.beside:
            other = folder / "beside"
            install(other, build_wheel(other, options.beside), options.extra, options.uv)
            programs[options.beside] = installed_programs(other / "timed")
        print_seconds(programs, options.runs)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
