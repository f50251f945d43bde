"""Exports for SkyPilot, dstack and Kubeflow Trainer, read by their own code: `make test-consumers` runs this module once in
the environment of each."""

import importlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardtune.tuner.export.launchers import gpu_names
from shardtune.workers.rank import check_export
from tests.support.values import launcher_exports
from tests.support.values.launcher_exports import CLUSTERS, FSDP2, exported, written

PACKAGES = {"skypilot": "skypilot", "dstack": "dstack", "trainjob": "kubeflow-trainer-api"}
HOSTILE = 'x: {y\n---\n- "\'" # $(id) `id` ${{ secrets.key }} ${HOME} \u2028\x85\u202e %s'


def needs(form: str) -> pytest.MarkDecorator:
    """Skip where the launcher is not installed."""
    missing = check_export.installed_release(PACKAGES[form]) == (0, 0)
    return pytest.mark.skipif(missing, reason=f"{form} is not installed: `make test-consumers` runs this")


FORMS = [pytest.param(form, marks=needs(form)) for form in PACKAGES]
DEVICES = {"h100": "H100", "a100": "A100", "unknown": "SET-ME", "cpu": "2"}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of the test's own: SkyPilot keeps its state there, and reports its use unless it is told not to."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_launchers_own_code_reads_the_file(form: Any, cluster: str, tmp_path: Path) -> None:
    folder = written(exported(form, CLUSTERS[cluster]), tmp_path)
    answer = check_export.check(form, folder)
    assert answer["checked"], answer
    assert f"{CLUSTERS[cluster].nodes} " in answer["says"] and "variables" in answer["says"]
    if form != "trainjob":
        assert DEVICES[cluster] in answer["says"], answer


@pytest.mark.parametrize("form", FORMS)
def test_a_study_with_any_name_is_read_alike(form: Any, tmp_path: Path) -> None:
    cluster = launcher_exports.UNKNOWN
    answers = []
    for gpu, study_id in ((cluster.gpu, "study-1"), (HOSTILE, HOSTILE)):
        folder = tmp_path / str(len(answers))
        folder.mkdir()
        written(exported(form, cluster.model_copy(update={"gpu": gpu}), study_id=study_id), folder)
        answers.append(check_export.check(form, folder))
    assert answers[0] == answers[1] and answers[1]["checked"], answers


@pytest.mark.parametrize("form", FORMS)
def test_a_field_that_the_launcher_does_not_know_is_named(form: Any, tmp_path: Path) -> None:
    folder = written(exported(form), tmp_path)
    (path,) = (
        folder / name for name in ("skypilot.yaml", "train.dstack.yml", "trainjob.yaml") if (folder / name).exists()
    )
    path.write_text(path.read_text() + "num_ndoes: 2\n")
    with pytest.raises(Exception, match="num_ndoes"):
        check_export.check(form, folder)


@needs("skypilot")
def test_skypilot_starts_each_node_with_the_measured_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(exported("skypilot", config=FSDP2), tmp_path)
    sky = importlib.import_module("sky")
    monkeypatch.chdir(folder)
    task = sky.Task.from_yaml("skypilot.yaml")
    assert (task.num_nodes, task.envs["NCCL_ALGO"], "NCCL_SOCKET_IFNAME" in task.envs) == (2, "Ring", False)
    node = {"SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5", "SKYPILOT_NODE_RANK": "1", **task.envs}
    assert started(task.run, folder, node) == started_as(folder, "10.0.0.4")


@needs("dstack")
def test_dstack_starts_each_node_with_the_measured_environment(tmp_path: Path) -> None:
    folder = written(exported("dstack", config=FSDP2), tmp_path)
    models = importlib.import_module("dstack._internal.core.models.configurations")
    task = models.parse_run_configuration(yaml.safe_load((folder / "train.dstack.yml").read_text()))
    assert task.commands[0] == "uv pip install torch==2.13.0 transformers==5.23.0"
    node = {"DSTACK_MASTER_NODE_IP": "10.0.0.4", "DSTACK_NODE_RANK": "1", **dict(task.env)}
    # As dstack's server joins them.
    assert started(" && ".join(task.commands[1:]), folder, node) == started_as(folder, "10.0.0.4")


@needs("trainjob")
def test_kubeflow_starts_each_node_with_the_measured_environment(tmp_path: Path) -> None:
    folder = written(exported("trainjob", config=FSDP2), tmp_path)
    config_map, job = yaml.safe_load_all((folder / "trainjob.yaml").read_text())
    trainer = job["spec"]["trainer"]
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for name, text in config_map["data"].items():
        (mounted / name).write_text(text)
    node = {"PET_MASTER_ADDR": "train-node-0-0.train", "PET_NODE_RANK": "1"}
    node |= {variable["name"]: variable["value"] for variable in trainer["env"]}
    script = trainer["command"][2].replace("/shardtune", str(mounted))
    assert started(script, folder, node) == started_as(mounted, "train-node-0-0.train")


def started(script: str, folder: Path, variables: dict[str, str]) -> str:
    """What a node's script starts, by an interpreter that says it."""
    python = Path(os.environ["HOME"]) / "train/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$NODE_RANK at $MASTER_ADDR, $NCCL_ALGO, $MALLOC_TRIM_THRESHOLD_: $*"\n')
    python.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "PYTHON": str(python), **variables}
    ended = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=20, check=False
    )
    return ended.stdout or ended.stderr


def started_as(folder: Path, first: str) -> str:
    options = f"--nnodes 2 --nproc-per-node 8 --rdzv-id shardtune --rdzv-backend c10d --rdzv-endpoint {first}:29500"
    return f"1 at {first}, Ring, 2147483647: -m torch.distributed.run {options} {folder}/train_snippet.py\n"


@needs("dstack")
def test_every_gpu_has_a_name_that_dstack_knows() -> None:
    gpuhunt = importlib.import_module("gpuhunt")
    known = {gpu.name for gpu in gpuhunt.KNOWN_ACCELERATORS}
    named = {names.dstack.partition(":")[0] for names in gpu_names.NAMES.values() if names.dstack}
    assert named <= known
    sizes = {(gpu.name, f"{gpu.memory}GB") for gpu in gpuhunt.KNOWN_ACCELERATORS}
    assert {
        tuple(names.dstack.split(":")) for names in gpu_names.NAMES.values() if ":" in (names.dstack or "")
    } <= sizes


DEPLOY = Path(__file__).parents[2] / "deploy"
WORKER = {"SHARDTUNE_SERVICE_URL": "https://tune.example.com", "SHARDTUNE_API_KEY": "secret", "EXIT_WHEN_IDLE": "10"}


@needs("skypilot")
def test_skypilot_starts_a_worker_that_gets_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sky = importlib.import_module("sky")
    content = yaml.safe_load((DEPLOY / "skypilot/worker.yaml").read_text())
    given = {"SHARDTUNE_SERVICE_URL": WORKER["SHARDTUNE_SERVICE_URL"]}
    task = sky.Task.from_yaml_config(
        content, env_overrides=list(given.items()), secrets_overrides=[("SHARDTUNE_API_KEY", "secret")]
    )
    assert [str(resources.accelerators) for resources in task.resources] == ["{'H100': 8}"]
    python = Path(os.environ["HOME"]) / "shardtune/bin/python"
    printed = worker_started(
        task.run, python, {**task.envs, "SHARDTUNE_API_KEY": "secret", "SKYPILOT_TASK_ID": "sky-7"}
    )
    work_dir = Path(os.environ["HOME"]) / "shardtune-work"
    assert printed == f"key secret, none in the environment: {options(work_dir, 'sky-7')}\n"


@needs("dstack")
def test_dstack_starts_a_worker_that_gets_its_key_alone() -> None:
    models = importlib.import_module("dstack._internal.core.models.configurations")
    task = models.parse_run_configuration(yaml.safe_load((DEPLOY / "dstack/worker.dstack.yml").read_text()))
    assert (task.resources.gpu.name, task.resources.gpu.count.min) == (["H100"], 8)
    assert {name for name in WORKER if name in dict(task.env)} == set(WORKER)
    python = Path(os.environ["HOME"]) / "bin/python"
    install = python.with_name("uv")
    python.parent.mkdir()
    install.write_text("#!/bin/sh\n")
    install.chmod(0o755)
    variables = {**WORKER, "SHARDTUNE_PACKAGE": "shardtune[worker]", "DSTACK_RUN_NAME": "run-7"}
    printed = worker_started(" && ".join(task.commands), python, variables)
    assert printed == f"key secret, none in the environment: {options(Path('/tmp/shardtune-work'), 'run-7')}\n"


def options(work_dir: Path, name: str) -> str:
    service = WORKER["SHARDTUNE_SERVICE_URL"]
    return f"-m shardtune.workers --service {service} --work-dir {work_dir} --name {name} --exit-when-idle 10"


def worker_started(script: str, python: Path, variables: dict[str, str]) -> str:
    """What a script starts as the worker, by an interpreter that says which key it got, and how."""
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(
        "#!/bin/bash\n"
        'key="$(cat <&"$SHARDTUNE_API_KEY_FD")"\n'
        'echo "key $key, ${SHARDTUNE_API_KEY:-none} in the environment: $*"\n'
    )
    python.chmod(0o755)
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": os.environ["HOME"], **variables}
    ended = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=20, check=False
    )
    return ended.stdout or ended.stderr
