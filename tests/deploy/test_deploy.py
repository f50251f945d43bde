"""deploy/ is what its consumers read, by their own checkers; each finds a typo that is planted. `make check-deploy`."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("kubernetes_validate", reason="`make check-deploy` installs the checkers")

from tests.deploy.checks.programs import NoChecker
from tests.deploy.checks.registry import CHECKS
from tests.support.requirements import missing

DEPLOY = Path(__file__).parents[2] / "deploy"
GANG = "kubernetes/overlays/{}/gang.yaml"
RECOMMENDER = "kubernetes/overlays/kubeflow-recommender/recommender.yaml"
CLIENT_CA = "kubernetes/overlays/kubeflow-recommender-client-ca/kustomization.yaml"
POOL = "kubernetes/overlays/autoscaled-workers/workers.yaml"
TYPOS = [
    ("systemd", "systemd/shardtune-worker.service", "RestartSec=", "RestartSecs="),
    ("systemd", "systemd/shardtune-ray-node.service", "ExecStart=", "ExecStart"),
    ("exposure", "systemd/shardtune-service.service", "SystemCallFilter=", "# "),
    ("exposure", "systemd/shardtune-worker.service", "CapabilityBoundingSet=", "# "),
    ("containers", "containers/service.Containerfile", "WORKDIR /source", "WORKDIR source"),
    ("containers", "containers/worker.Containerfile", "ENTRYPOINT [", "ENTRYPOIN ["),
    ("images", "compose/compose.yaml", "prom/prometheus:v3.5.0", "prom/prometheus"),
    ("images", "containers/worker.Containerfile", "debian:bookworm-slim", "debian:latest"),
    ("images", "helm/shardtune/values.yaml", "postgres:17", "postgres:17@sha256:17"),
    ("scripts", "pin-images.sh", '"${files[@]}" | sort', "${files[@]} | sort"),
    ("scripts", "slurm/worker.sbatch", '"$service"', "$service"),
    ("scripts", "slurm/worker.sbatch", "image=$", "imag=$"),
    ("scripts", "ray/submit-worker.sh", "nodes=$", "node=$"),
    ("tasks", "skypilot/worker.yaml", '"$SHARDTUNE_PACKAGE"', "$SHARDTUNE_PACKAGE"),
    ("tasks", "dstack/worker.dstack.yml", "exec 9<<<", "exec 9 <<"),
    ("prometheus", "monitoring/alerts.yml", "expr: up{", "exp: up{"),
    ("prometheus", "monitoring/alerts.yml", "== 0\n        for: 2m", "== 1\n        for: 2m"),
    ("prometheus", "monitoring/prometheus.yml", "scrape_interval", "scrape_intervall"),
    ("dashboard", "monitoring/grafana/dashboards/shardtune.json", "sum by (end) (", "sum by (end ("),
    ("metrics", "monitoring/grafana/dashboards/shardtune.json", "shardtune_studies", "shardtune_study"),
    ("metrics", "monitoring/alerts.yml", 'end="device"', 'end="devices"'),
    ("compose", "compose/compose.yaml", "read_only: true", "readonly: true"),
    ("compose", "compose/compose.yaml", "[metrics_key]", "[metric_key]"),
    ("compose", "compose/compose.yaml", "../monitoring/alerts.yml", "../monitoring/alert.yml"),
    ("compose", "compose/env.example", "POSTGRES_PASSWORD", "POSTGRES_PASSWORT"),
    ("compose", "compose/env.example", "GRAFANA_PASSWORD", "GRAFANA_PASSWORT"),
    ("kubernetes", "kubernetes/base/service.yaml", "containerPort", "containerport"),
    ("kubernetes", "kubernetes/base/service.yaml", "runAsNonRoot: true", "runAsNonRoot: false"),
    ("kubernetes", "kubernetes/base/network.yaml", "{app: shardtune-migrate}", "{app: shardtune-migration}"),
    ("kubernetes", "kubernetes/base/kustomization.yaml", "resources:", "resource:"),
    ("kubernetes", "kubernetes/overlays/one-host-workers/workers.yaml", "podManagementPolicy", "podManagmentPolicy"),
    ("kubernetes", RECOMMENDER, "failurePolicy", "failPolicy"),
    ("kubernetes", RECOMMENDER, "timeoutSeconds: 10", "timeoutSeconds: soon"),
    (
        "kubernetes",
        RECOMMENDER,
        "matchLabels: {app: shardtune-recommender}\n  policyTypes",
        "matchLabels: {app: x}\n  policyTypes",
    ),
    ("kubernetes", POOL, "valueLocation", "valueLocaton"),
    ("kubernetes", POOL, "targetValue", "targetSize"),
    ("kubernetes", POOL, "secretTargetRef", "secretRef"),
    ("kubernetes", POOL, "backoffLimit", "backofLimit"),
    ("kubernetes", POOL, "{strategy: gradual}", "{strategies: gradual}"),
    ("kubernetes", GANG.format("kuberay"), "submissionMode", "submitMode"),
    ("kubernetes", GANG.format("kuberay"), "mountPath", "mountpath"),
    ("kubernetes", GANG.format("jobset"), "enableDNSHostnames", "enableDNSHostname"),
    ("kubernetes", GANG.format("jobset"), "secretKeyRef", "secretRef"),
    ("kubernetes", GANG.format("trainer"), "numNodes: 4\n", "nodes: 4\n"),
    ("kubernetes", GANG.format("trainer"), "drop: [ALL]", "drop: [NET_RAW]"),
    ("helm", "helm/shardtune/Chart.yaml", "version: 0.1.0", "version: first"),
    ("helm", "helm/shardtune/templates/service.yaml", "containerPort", "containerport"),
    ("helm", "helm/shardtune/templates/_helpers.tpl", "runAsNonRoot: true", "runAsNonRoot: false"),
    ("helm", "helm/shardtune/templates/network.yaml", "{{ $fullname }}-migrate", "{{ $fullname }}-migration"),
    ("helm", "helm/shardtune/templates/ingress.yaml", "pathType", "pathtype"),
    ("helm", "helm/shardtune/templates/monitoring.yaml", "jobLabel", "joblabel"),
    ("helm", "helm/shardtune/templates/postgres.yaml", "volumeClaimTemplates", "volumeClaims"),
    ("helm-like-kustomize", "helm/shardtune/templates/service.yaml", "failureThreshold: 6", "failureThreshold: 5"),
    ("helm-like-kustomize", "kubernetes/base/network.yaml", "10.0.0.0/8, ", ""),
    ("helm-like-kustomize", RECOMMENDER, "timeoutSeconds: 10", "timeoutSeconds: 9"),
    ("helm-like-kustomize", RECOMMENDER, "--answer-within=5", "--answer-within=6"),
    ("helm-like-kustomize", CLIENT_CA, "tcpSocket", "httpGet"),
]


def complaints(check: str, deploy: Path) -> list[str]:
    try:
        return CHECKS[check](deploy)
    except NoChecker as error:
        missing(str(error))
        return []


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_wrong(check):
    assert complaints(check, DEPLOY) == []


@pytest.mark.parametrize(("check", "name", "right", "wrong"), TYPOS)
def test_a_planted_typo_is_found(check, name, right, wrong, tmp_path):
    copied = shutil.copytree(DEPLOY, tmp_path / "deploy")
    text = (copied / name).read_text()
    assert right in text
    (copied / name).write_text(text.replace(right, wrong))
    assert complaints(check, copied) != []
