"""A command whose package is missing names the extra that brings it."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from shardtune.service.cli import missing_extras

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
NEVER_IMPORTED = {"tzdata", "ninja", "uvicorn"}


def extras_by_distribution():
    return {
        Requirement(line).name: extra
        for extra, lines in PROJECT["optional-dependencies"].items()
        for line in lines
        if Requirement(line).name not in NEVER_IMPORTED
    }


def test_every_package_of_an_extra_is_known():
    modules = {}
    for module, distributions in importlib.metadata.packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(distribution.lower().replace("_", "-"), set()).add(module)
    unknown = [
        name
        for name in extras_by_distribution()
        # What is not installed here has no modules to look at.
        if name.lower().replace("_", "-") in modules
        and not any(
            missing_extras.remedy(ModuleNotFoundError(name=module))
            for module in modules.get(name.lower().replace("_", "-"), ())
        )
    ]
    assert unknown == []


def test_a_module_of_no_extra_stays_a_fault():
    assert missing_extras.remedy(ModuleNotFoundError(name="shardtune.nothing")) is None


@pytest.mark.parametrize(
    ("blocked", "command", "extra"),
    [
        ("fastapi", ["serve"], "service"),
        ("huggingface_hub", ["predict", "Qwen/Qwen3-8B", "--cluster", "8xh100"], "service"),
    ],
)
def test_the_command_ends_with_the_remedy(blocked, command, extra):
    code = f"import sys; sys.modules[{blocked!r}] = None; from shardtune.service.cli import main; main({command!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and f"pip install 'shardtune[{extra}]'" in ended.stderr, ended.stderr
    assert "with this environment's pip, since no index has this project's package" in ended.stderr
    assert "Traceback" not in ended.stderr


LIGHT = ("sqlalchemy", "fastapi", "starlette", "optuna", "huggingface_hub", "torch", "mcp", "jinja2", "alembic")


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "llama-3.1-8b", "--cluster", "8xh100"],
        ["plan", "llama-3.1-8b", "--tokens", "1e11", "--gpus", "h100", "--counts", "8"],
        ["explain", "--trace", "tests/data/holistic_trace_analysis"],
    ],
)
def test_the_light_installation_runs(command):
    code = f"import sys\nfor name in {LIGHT!r}: sys.modules[name] = None\nfrom shardtune.service.cli import main; main({command!r})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
