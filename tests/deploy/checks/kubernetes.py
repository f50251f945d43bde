"""Manifests as kustomize builds them: fields by the schemas of each kind, strictly, and what no pod here may do."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime

from tests.deploy.checks.programs import run

VERSIONS = ("1.35", "1.36", "1.37")
_MODELS = {
    "JobSet": JobsetV1alpha2JobSet,
    "TrainJob": TrainerV1alpha1TrainJob,
    "TrainingRuntime": TrainerV1alpha1TrainingRuntime,
}
_RAYJOB = json.loads((Path(__file__).with_name("schemas") / "rayjob.json").read_text())
_KEDA = json.loads((Path(__file__).with_name("schemas") / "keda.json").read_text())
_MONITORING = json.loads((Path(__file__).with_name("schemas") / "prometheus_operator.json").read_text())

Manifest = dict[str, Any]


def kubernetes(deploy: Path) -> list[str]:
    """Everything that can be applied: the base and each overlay."""
    folders = [deploy / "kubernetes/base", *sorted((deploy / "kubernetes/overlays").iterdir())]
    return [f"{folder.name}: {wrong}" for folder in folders for wrong in _folder(folder)]


def _folder(folder: Path) -> list[str]:
    try:
        return wrong_manifests(kustomized(folder))
    except NotBuilt as error:
        return [str(error)]


class NotBuilt(Exception):
    """The builder of manifests rejected its input."""


def kustomized(folder: Path) -> list[Manifest]:
    """Manifests of a base or an overlay.

    Raises:
        NotBuilt: kustomize rejects the folder.
    """
    built = run(["kubectl", "kustomize", str(folder)], folder)
    if built.returncode:
        raise NotBuilt(built.stderr.strip())
    return manifests_in(built.stdout)


def manifests_in(text: str) -> list[Manifest]:
    """Documents of a stream, by libyaml: PyYAML's own parser took half of the time of these checks."""
    return [manifest for manifest in yaml.load_all(text, Loader=yaml.CSafeLoader) if manifest]


def wrong_manifests(manifests: list[Manifest]) -> list[str]:
    """Complaints about what is applied together."""
    return [
        f"{manifest['kind']} {manifest['metadata']['name']}: {wrong}"
        for manifest in manifests
        for wrong in _manifest(manifest)
    ] + _labels(manifests)


def _manifest(manifest: Manifest) -> Iterator[str]:
    yield from _fields(manifest)
    for template in pod_templates(manifest):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **template.get("metadata", {})}}
        yield from _core({**pod, "spec": template["spec"]})
        yield from _rights(template["spec"])


def _fields(manifest: Manifest) -> list[str]:
    kind = manifest["kind"]
    if kind in _MODELS:
        return list(_lost(manifest, _MODELS[kind].from_dict(manifest).to_dict()))
    if kind == "RayJob":
        return _by_schema(manifest, _RAYJOB)
    if kind in _KEDA:
        return _by_schema(manifest, _KEDA[kind]) + (_scaled_job(manifest["spec"]) if kind == "ScaledJob" else [])
    if kind in _MONITORING:
        return _by_schema(manifest, _MONITORING[kind])
    return list(_core(manifest))


def _by_schema(content: object, schema: dict[str, Any]) -> list[str]:
    errors = jsonschema.Draft7Validator(schema).iter_errors(content)
    return [f"{'.'.join(map(str, error.path))}: {error.message[:300]}" for error in errors]


def _scaled_job(spec: dict[str, Any]) -> list[str]:
    """Check the job of a ScaledJob as Kubernetes', and the metadata of its triggers, which KEDA keeps as any text."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec["jobTargetRef"]}
    triggers = [_by_schema(trigger["metadata"], _KEDA[trigger["type"]]) for trigger in spec["triggers"]]
    return [*_core(job), *(wrong for trigger in triggers for wrong in trigger)]


def _core(manifest: Manifest) -> tuple[str, ...]:
    return _validated(json.dumps(manifest))


@cache
def _validated(text: str) -> tuple[str, ...]:
    """Remembered: the base is part of every overlay."""
    actual = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(json.loads(text), version, strict=True)
        except kubernetes_validate.ValidationError as error:
            actual.append(f"{version}: {'.'.join(map(str, error.path))}: {error.message[:300]}")
        except kubernetes_validate.SchemaNotFoundError as error:
            actual.append(error.message)
    return tuple(actual)


def _lost(inputs: object, kept: object, at: str = "") -> Iterator[str]:
    """Fields that a published model lost: it drops fields that it does not know without a word."""
    if isinstance(inputs, Mapping) and isinstance(kept, Mapping):
        for name in inputs:
            yield from _lost(inputs[name], kept[name], f"{at}.{name}") if name in kept else [f"{at}.{name} is no field"]
    elif isinstance(inputs, list) and isinstance(kept, list) and len(inputs) == len(kept):
        for number, (item, other) in enumerate(zip(inputs, kept, strict=True)):
            yield from _lost(item, other, f"{at}[{number}]")
    elif inputs != kept:
        yield f"{at} ({inputs}) becomes {kept}"


def pod_templates(node: object) -> Iterator[dict[str, Any]]:
    """Every pod template in a manifest, however deep: what has a specification with containers."""
    if isinstance(node, Mapping):
        spec = node.get("spec")
        if isinstance(spec, Mapping) and "containers" in spec:
            yield dict(node)
        for value in node.values():
            yield from pod_templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_templates(value)


def _rights(spec: Mapping[str, Any]) -> Iterator[str]:
    """No root, no token of Kubernetes, nothing to write on but what is mounted."""
    pod = spec.get("securityContext", {})
    if spec.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken must be false"
    if not pod.get("runAsNonRoot") or not pod.get("runAsUser"):
        yield "securityContext must have runAsNonRoot and a runAsUser"
    if pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "securityContext.seccompProfile must be RuntimeDefault"
    expected = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        own = container.get("securityContext", {})
        yield from (
            f"{container['name']}: {name} must be {value}" for name, value in expected.items() if own.get(name) != value
        )


def _labels(manifests: list[Manifest]) -> list[str]:
    """Every policy but those for all pods selects a pod of the overlay: a typo in a label would leave a door shut."""
    pods = [
        template.get("metadata", {}).get("labels", {}) for manifest in manifests for template in pod_templates(manifest)
    ]
    chosen = [
        (manifest["metadata"]["name"], manifest["spec"]["podSelector"].get("matchLabels", {}))
        for manifest in manifests
        if manifest["kind"] == "NetworkPolicy"
    ]
    return [
        f"NetworkPolicy {name} selects no pod"
        for name, labels in chosen
        if labels and not any(labels.items() <= pod.items() for pod in pods)
    ]
