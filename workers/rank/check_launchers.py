"""Read exported launchers' files by the launchers' own code: SkyPilot, dstack, Kubeflow Trainer's models, Ray.

Each function returns what the launcher understood, in words, or raises ValueError with the launcher's reason.
"""

import contextlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml


def read_skypilot(folder: Path) -> str:
    """Check `skypilot.yaml` by reading it as `sky launch` does; no cloud is needed."""
    # A check is no use of SkyPilot that its authors should hear of.
    os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
    sky = importlib.import_module("sky")
    # A relative `workdir` is below the folder that `sky launch` runs in.
    with contextlib.chdir(folder):
        task = sky.Task.from_yaml("skypilot.yaml")
    (resources,) = task.resources
    return (
        f"a task of {task.num_nodes} nodes with {resources.accelerators or resources.cpus}, {len(task.envs)} variables"
    )


def read_dstack(folder: Path) -> str:
    """Check `train.dstack.yml` by reading it as `dstack apply` does; no server is needed."""
    models = importlib.import_module("dstack._internal.core.models.configurations")
    content = yaml.safe_load((folder / "train.dstack.yml").read_text())
    task = models.parse_run_configuration(content)
    gpu = task.resources.gpu
    devices = f"{','.join(gpu.name)} × {gpu.count.min}" if gpu.name else f"cpu {task.resources.cpu.count}"
    return f"a {task.type} of {task.nodes or 1} nodes with {devices}, {len(dict(task.env))} variables"


def read_trainjob(folder: Path) -> str:
    """Read `trainjob.yaml` with the pydantic models that Kubeflow Trainer publishes."""
    models = importlib.import_module("kubeflow_trainer_api.models")
    config_map, job = yaml.safe_load_all((folder / "trainjob.yaml").read_text())
    for content, kind in ((config_map, models.IoK8sApiCoreV1ConfigMap), (job, models.TrainerV1alpha1TrainJob)):
        kept = json.loads(json.dumps(kind.from_dict(content).to_dict()))
        if lost := list(unknown_fields(content, kept)):
            raise ValueError(f"trainjob.yaml: {', '.join(lost)} is not in the API; export again")
    trainer = job["spec"]["trainer"]
    return (
        f"a TrainJob of {trainer['numNodes']} × {trainer['numProcPerNode']} processes, {len(trainer['env'])} variables"
    )


def read_ray(folder: Path) -> str:
    """Check `ray_job.py`: compile it, and find every name of Ray that it imports."""
    source = (folder / "ray_job.py").read_text()
    compile(source, "ray_job.py", "exec")
    importlib.import_module("ray")
    for line in source.splitlines():
        if line.startswith("from ray."):
            module, _, name = line.removeprefix("from ").partition(" import ")
            getattr(importlib.import_module(module), name)
    return "an entry point whose imports it has"


def unknown_fields(given: object, kept: object, at: str = "") -> Iterator[str]:
    """Paths of the fields that are gone or changed after a published model has parsed the file. Such models drop
    unknown fields silently, so a missing field is one that the model does not know."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for name, value in given.items():
            yield from unknown_fields(value, kept[name], f"{at}.{name}") if name in kept else [f"{at}.{name}"]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (item, other) in enumerate(zip(given, kept, strict=True)):
            yield from unknown_fields(item, other, f"{at}[{number}]")
    elif given != kept:
        yield at
