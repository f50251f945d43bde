"""All checks by name."""

from collections.abc import Callable
from pathlib import Path

from tests.support.deploy_checks.compose import compose
from tests.support.deploy_checks.kubernetes import kubernetes
from tests.support.deploy_checks.monitoring import dashboard, metrics, prometheus
from tests.support.deploy_checks.units_and_scripts import containers, scripts, systemd

CHECKS: dict[str, Callable[[Path], list[str]]] = {
    "systemd": systemd,
    "containers": containers,
    "scripts": scripts,
    "prometheus": prometheus,
    "dashboard": dashboard,
    "metrics": metrics,
    "compose": compose,
    "kubernetes": kubernetes,
}
