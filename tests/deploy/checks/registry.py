"""All checks by name."""

from collections.abc import Callable
from pathlib import Path

from tests.deploy.checks.compose import compose
from tests.deploy.checks.helm import helm, like_kustomize
from tests.deploy.checks.images import images
from tests.deploy.checks.kubernetes import kubernetes
from tests.deploy.checks.monitoring import dashboard, metrics, prometheus
from tests.deploy.checks.task_files import task_files
from tests.deploy.checks.units_and_scripts import containers, exposure, scripts, systemd

CHECKS: dict[str, Callable[[Path], list[str]]] = {
    "systemd": systemd,
    "exposure": exposure,
    "containers": containers,
    "images": images,
    "scripts": scripts,
    "tasks": task_files,
    "prometheus": prometheus,
    "dashboard": dashboard,
    "metrics": metrics,
    "compose": compose,
    "kubernetes": kubernetes,
    "helm": helm,
    "helm-like-kustomize": like_kustomize,
}
