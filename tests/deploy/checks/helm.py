"""The Helm chart by Helm itself: lint, each example of values rendered and checked as kustomize's manifests are, and compared with those."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.deploy.checks.kubernetes import Manifest, NotBuilt, kustomized, manifests_in, wrong_manifests
from tests.deploy.checks.programs import run

CHART = Path("helm/shardtune")
EXAMPLES = Path("helm/examples")
_LABELS = {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
_HELMS_LABELS = {"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}
_OTHER_NAMES = {
    ("NetworkPolicy", name): f"shardtune-{name}"
    for name in ("nothing-else", "names", "service", "migrate", "asks-service", "gang", "ray-operator", "recommender")
}
"""Names by kustomize, and the chart's. A policy's name begins with the release's: a namespace may hold several releases."""
_NOT_IN_CHART = {
    ("Namespace", "shardtune"): "a release lives in a namespace that stands already, or that --create-namespace makes",
}


def helm(deploy: Path) -> list[str]:
    """Lint the chart, and check what it renders by default and with each example."""
    linted = run(["helm", "lint", "--strict", *_all_values(deploy), str(deploy / CHART)], deploy)
    wrong = [f"helm lint: {linted.stdout}{linted.stderr}"] if linted.returncode else []
    for example in (None, *sorted((deploy / EXAMPLES).glob("*.yaml"))):
        name = example.name if example else "values.yaml"
        try:
            wrong += [f"{name}: {item}" for item in wrong_manifests(rendered(deploy, example))]
        except NotBuilt as error:
            wrong.append(f"{name}: {error}")
    return wrong


def like_kustomize(deploy: Path) -> list[str]:
    """Compare the chart with the base, and each example of an overlay's name with that overlay, object by object."""
    overlays = sorted((deploy / "kubernetes/overlays").iterdir())
    pairs = [
        (deploy / "kubernetes/base", None),
        *((each, deploy / EXAMPLES / f"{each.name}.yaml") for each in overlays),
    ]
    return [
        f"{folder.name}: {difference}"
        for folder, example in pairs
        for difference in _differences(_by_name(kustomized(folder)), _chart_by_name(rendered(deploy, example)))
    ]


def rendered(
    deploy: Path, values: Path | None = None, options: Sequence[str] = (), release: str = "shardtune"
) -> list[Manifest]:
    """Manifests of the chart.

    Raises:
        NotBuilt: Helm rejects the values.
    """
    words = ["helm", "template", release, str(deploy / CHART), "--namespace=shardtune", *options]
    built = run([*words, *([f"--values={values}"] if values else [])], deploy)
    if built.returncode:
        raise NotBuilt("\n".join(line for line in built.stderr.splitlines() if "symbolic link" not in line))
    return manifests_in(built.stdout)


def _all_values(deploy: Path) -> list[str]:
    """All parts at once, of which only the kinds of workers exclude each other."""
    return [f"--values={path}" for path in sorted((deploy / EXAMPLES).glob("*.yaml"))]


def _chart_by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Any]:
    """Objects of the chart without the labels that kustomize's lack, and without the hash in the migration's name."""
    return {
        (kind, re.sub(r"^(shardtune-migrate)-[0-9a-f]{8}$", r"\1", name)): _without_labels(manifest)
        for (kind, name), manifest in _by_name(manifests).items()
    }


def _by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Any]:
    return {
        (manifest["kind"], manifest["metadata"].pop("name")): manifest for manifest in json.loads(json.dumps(manifests))
    }


def _without_labels(node: Any) -> Any:
    """The node without the labels of Helm, and without the maps and selectors that they leave empty."""
    if isinstance(node, list):
        return [_without_labels(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        name: _without_labels(value)
        for name, value in node.items()
        if name not in _HELMS_LABELS and not (name in _LABELS and value == "shardtune")
    }
    return {
        name: value for name, value in kept.items() if value or not (name in ("labels", "matchLabels") and node[name])
    }


def _differences(kustomize: dict[tuple[str, str], Any], chart: dict[tuple[str, str], Any]) -> Iterator[str]:
    expected = {
        (kind, _OTHER_NAMES.get((kind, name), name)): manifest
        for (kind, name), manifest in kustomize.items()
        if (kind, name) not in _NOT_IN_CHART
    }
    yield from (f"{' '.join(key)}: not in the chart" for key in expected if key not in chart)
    yield from (f"{' '.join(key)}: in the chart only" for key in chart if key not in expected)
    for key in sorted(expected.keys() & chart.keys()):
        yield from (f"{' '.join(key)}: {item}" for item in _unequal(expected[key], chart[key], ""))


def _unequal(kustomize: Any, chart: Any, at: str) -> Iterator[str]:
    if isinstance(kustomize, dict) and isinstance(chart, dict):
        for name in sorted(kustomize.keys() | chart.keys()):
            yield from _unequal(kustomize.get(name), chart.get(name), f"{at}.{name}")
    elif isinstance(kustomize, list) and isinstance(chart, list) and len(kustomize) == len(chart):
        for number, (left, right) in enumerate(zip(kustomize, chart, strict=True)):
            yield from _unequal(left, right, f"{at}[{number}]")
    elif kustomize != chart:
        yield f"{at}: kustomize has {kustomize}, the chart {chart}"
