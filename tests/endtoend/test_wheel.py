"""Installed as people install: a wheel in an environment of its own, used from a training repository with packages named like our parts."""

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tomllib
import venv
from email import message_from_string
from pathlib import Path
from typing import Any

import httpx
import pytest

import shardtune
from shardtune.service.cli.parent_death import dies_with_parent
from tests.support.long_run import WIDE
from tests.support.processes.stack import free_port, until
from tests.support.ranks.tiny_tasks import tiny_task

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SOURCES = ("api_schemas", "db", "traces", "tuner", "workers", "service")
SCRIPT = """
import api_schemas, db, service, tuner, workers
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from shardtune import adapter

assert all(part.OWN for part in (api_schemas, db, service, tuner, workers)), "the repository's own packages"
trial = adapter.trial()
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
trial.prepare(model)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    loss = model(torch.ones(trial.micro_batch, 8)).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    trial.report(loss.detach(), norm)
"""

USER_CODE = """
import shardtune
from shardtune.client import ServiceClient

reveal_type(shardtune.__version__)
with ServiceClient("http://127.0.0.1:8470") as client:
    reveal_type(client.study("mine"))
    client.study(7)
reveal_type(shardtune.predict("gpt2", "8xh100", sequence_length=512))
shardtune.predict("gpt2", "8xh100", sequence_length="long")
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that has the wheel, and what it needs from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*SOURCES, "shardtune"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("shardtune-*.whl")
    shutil.rmtree(source)
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment" / "bin" / "python"
    (own,) = (folder / "environment").glob("lib/python*/site-packages")
    # A path file's lines are added as they are; the path files there, this checkout's among them, are not read.
    libraries = [path for path in sys.path if path.endswith("site-packages") and Path(path).is_dir()]
    (own / "libraries.pth").write_text("\n".join({*libraries, *site.getsitepackages()}))
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    return python.parent


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A training repository whose packages have the names of our parts."""
    for name in SOURCES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWN = True\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run(command: list[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, **options)


def test_a_wheel_holds_one_package_and_all_its_files(programs: Path, repository: Path) -> None:
    code = "import shardtune.db.session as s; print(s.__file__)"
    where = run([str(programs / "python"), "-c", code], repository, check=True).stdout.strip()
    assert where.startswith(str(programs.parent))
    installed = Path(where).parents[1]
    there = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.suffix not in (".pyc", "")}
    tracked = subprocess.run(["git", "ls-files", *SOURCES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {name for name in tracked.split() if (ROOT / name).is_file()} <= there
    assert {path.name for path in installed.parent.iterdir()} & set(SOURCES) == set()
    assert (installed / "py.typed").is_file(), "type checkers of users read the package's types"


def test_it_serves_its_pages(programs: Path, repository: Path) -> None:
    port = free_port()
    command = [str(programs / "shardtune"), "serve", "--port", str(port)]
    with (repository / "service.log").open("w") as log:
        service = subprocess.Popen(dies_with_parent(command), cwd=repository, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            until(lambda: answers(http), 60, "the service answers")
            page = http.get("/")
            assert page.status_code == 200 and "app.css" in page.text
            assert http.get("/v1/studies").json()["studies"] == []
    finally:
        service.terminate()
        assert service.wait(30) in (0, -signal.SIGTERM)


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").is_success
    except httpx.TransportError:
        return False


def assert_trial_runs(command: list[str], folder: Path) -> None:
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens_per_s_per_gpu"] > 0


def test_it_runs_a_script_of_the_repository(programs: Path, repository: Path) -> None:
    task: dict[str, Any] = json.loads(tiny_task({"kind": "ddp"}).model_dump_json())
    (repository / "trial.json").write_text(json.dumps(task | {"model": {"script": "train"}}))
    command = [str(programs / "shardtune"), "run-trial", "trial.json", "--json"]
    assert_trial_runs([*command, "--allow-script", f"train={repository / 'train.py'}"], repository)


@WIDE
def test_it_runs_a_trial(programs: Path, repository: Path) -> None:
    (repository / "trial.json").write_text(tiny_task({"kind": "ddp"}).model_dump_json())
    command = [str(programs / "python"), "-m", "shardtune.workers", "run-trial", "trial.json", "--json"]
    assert_trial_runs(command, repository)


@WIDE
def test_type_checker_of_a_user_reads_the_types(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER_CODE)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    checked = run([*command, f"--python-executable={programs / 'python'}", "user.py"], tmp_path)
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    revealed = [line.partition('"')[2].rstrip('"') for line in checked.stdout.splitlines() if "Revealed type" in line]
    assert [(line.split(":")[1], line.rpartition("[")[2]) for line in errors] == [
        ("8", "arg-type]"),
        ("10", "arg-type]"),
    ], checked.stdout
    assert [name.replace("builtins.", "") for name in revealed] == [
        "str",
        "shardtune.api_schemas.studies.study.Study",
        "shardtune.service.python_api.predictions.Predictions",
    ]


def test_metadata_states_the_license_and_offers_no_tools(programs: Path) -> None:
    (folder,) = programs.parent.glob("lib/python*/site-packages/shardtune-*.dist-info")
    metadata = message_from_string((folder / "METADATA").read_text())
    assert metadata["Version"] == shardtune.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert [(folder / "licenses" / name).is_file() for name in metadata.get_all("License-File", [])] == [True]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    offered = set(metadata.get_all("Provides-Extra", []))
    assert offered == set(declared["project"]["optional-dependencies"])
    assert offered.isdisjoint(declared["dependency-groups"]), "tools of developers are no extras"
