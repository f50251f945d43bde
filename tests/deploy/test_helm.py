"""The chart rejects wrong values by naming them, keeps two releases in one namespace apart, and holds no secret."""

import base64
import inspect
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes_validate", reason="`make check-deploy` installs the checkers")

from shardtune.service.cli.commands import kubeflow
from tests.deploy.checks.helm import CHART, EXAMPLES, rendered
from tests.deploy.checks.kubernetes import Manifest, NotBuilt, pod_templates, wrong_manifests
from tests.deploy.checks.programs import NoChecker, program_path
from tests.support.requirements import missing

DEPLOY = Path(__file__).parents[2] / "deploy"
LONGEST_RELEASE = "a-release-with-the-longest-name-that-helm-lets-you-use"[:53]
HOSTILE = "quote \" apostrophe ' newline\n- {brace: ${HOME} {{ .Values }} # hash \\ é"


@pytest.fixture(autouse=True)
def _helm() -> None:
    try:
        program_path("helm")
    except NoChecker as error:
        missing(str(error))


def render(values: dict[str, Any], tmp_path: Path, release: str = "shardtune") -> list[Manifest]:
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps(values))
    return rendered(DEPLOY, path, release=release)


def all_parts(**more: Any) -> dict[str, Any]:
    return {
        "service": {"trustedProxies": ["10.244.0.0/16"]},
        "postgres": {"enabled": True},
        "recommender": {"enabled": True},
        "ingress": {"enabled": True, "host": "shardtune.example.com"},
        "monitoring": {"enabled": True},
        **more,
    }


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replicas": 3}, "replicas"),
        ({"service": {"replica": 3}}, "replica"),
        ({"service": {"replicas": "3"}}, "/service/replicas"),
        ({"service": {"replicas": 0}}, "/service/replicas"),
        ({"service": {"replicas": 1.5}}, "/service/replicas"),
        ({"service": None}, "service"),
        ({"service": {"trustedProxies": "10.0.0.0/8"}}, "/service/trustedProxies"),
        ({"service": {"trustedProxies": []}}, "/service/trustedProxies"),
        ({"service": {"settings": {"SHARDTUNE_LEASE_S": 30}}}, "/service/settings/SHARDTUNE_LEASE_S"),
        (
            {"service": {"settings": {"SHARDTUNE_LEASE": "30"}}},
            "/service/settings': additional properties 'SHARDTUNE_LEASE'",
        ),
        ({"service": {"settings": {"SHARDTUNE_SECRET_KEY": "s" * 32}}}, "SHARDTUNE_SECRET_KEY"),
        ({"service": {"settings": {"SHARDTUNE_DATABASE_URL": "postgresql://a:b@c/d"}}}, "SHARDTUNE_DATABASE_URL"),
        ({"service": {"settings": {"SHARDTUNE_REQUIRE_KEYS": "false"}}}, "SHARDTUNE_REQUIRE_KEYS"),
        ({"service": {"existingSecret": "No_Name"}}, "/service/existingSecret"),
        ({"service": {"resources": {"limits": {"memory": "lots"}}}}, "/service/resources/limits/memory"),
        ({"workers": {"kind": "ray"}}, "/workers/kind"),
        ({"workers": {"kind": "one-host", "hosts": 0}}, "/workers/hosts"),
        ({"workers": {"args": "--cold"}}, "/workers/args"),
        ({"workers": {"env": {"SHARDTUNE_API_KEY": "secret"}}}, "/workers/env"),
        ({"workers": {"env": {"NCCL_IB_GID_INDEX": 3}}}, "/workers/env/NCCL_IB_GID_INDEX"),
        ({"recommender": {"clusters": ["8 x h100"]}}, "/recommender/clusters/0"),
        ({"ingress": {"enabled": True}}, "/ingress/host"),
        ({"ingress": {"host": "https://a.example.com/"}}, "/ingress/host"),
        ({"images": {"service": {"tag": "1 2"}}}, "/images/service/tag"),
        ({"fullnameOverride": "Shard Tune"}, "/fullnameOverride"),
        ({"fullnameOverride": "a" * 64}, "/fullnameOverride"),
        ({"monitoring": {"labels": {"team": "a\nb: c"}}}, "/monitoring/labels/team"),
        ({"monitoring": {"labels": {"a\nb: c": "team"}}}, "/monitoring/labels"),
        ({"monitoring": {"labels": {"app.kubernetes.io/name": "team"}}}, "/monitoring/labels"),
        ({"workers": {"nodeSelector": {"gpu": "two words"}}}, "/workers/nodeSelector/gpu"),
        ({"networkPolicies": {"dns": {"peers": []}}}, "/networkPolicies/dns/peers"),
        ({"networkPolicies": {"callers": [{}]}}, "/networkPolicies/callers/0"),
        ({"recommender": {"answerWithinSeconds": 26}}, "/recommender/answerWithinSeconds"),
        ({"recommender": {"clientCaSecret": "Two Words"}}, "/recommender/clientCaSecret"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
        ({"ingress": {"enabled": True, "host": "a.example.com"}}, "service.trustedProxies"),
        (
            {
                "service": {"trustedProxies": ["127.0.0.1", "::1"]},
                "ingress": {"enabled": True, "host": "a.example.com"},
            },
            "service.trustedProxies",
        ),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(NotBuilt) as error:
        render(values, tmp_path)
    # Helm 4 writes '/service/replicas', Helm 3.17 service.replicas.
    assert named.strip("/").replace("/", ".") in str(error.value).replace("/", "."), str(error.value)


def test_each_value_has_its_place_in_the_schema_and_a_comment() -> None:
    lines = (DEPLOY / CHART / "values.yaml").read_text().splitlines()
    values = yaml.safe_load("\n".join(lines))
    schema = json.loads((DEPLOY / CHART / "values.schema.json").read_text())
    assert {name: sorted(values[name]) for name in values if isinstance(values[name], dict)} == {
        name: sorted(part["properties"])
        for name, part in schema["properties"].items()
        if name != "global" and "properties" in part
    }
    assert schema["required"] == list(values)


@pytest.mark.parametrize(
    ("kind", "release"),
    [(kind, LONGEST_RELEASE) for kind in ("one-host", "autoscaled", "jobset", "trainer", "kuberay")]
    + [("one-host", "1"), ("one-host", "a.b")],
)
def test_names_of_any_release_are_valid(kind: str, release: str, tmp_path: Path) -> None:
    manifests = render(all_parts(workers={"kind": kind}), tmp_path, release)
    assert wrong_manifests(manifests) == []
    # Names of pods and hashes that Kubernetes appends to: 63 in all.
    spare = {"StatefulSet": 11, "Deployment": 11, "JobSet": 16, "RayJob": 16, "TrainJob": 16}
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        assert len(name) <= 63 - spare.get(manifest["kind"], 0), name
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name), name


def test_releases_that_look_alike_have_different_names(tmp_path: Path) -> None:
    for pair in ((f"{'a' * 50}-1", f"{'a' * 50}-2"), ("a.b", "a-b")):
        one, two = (names(render({}, tmp_path, release)) for release in pair)
        assert not one & two


def test_two_releases_in_a_namespace_share_no_object_and_no_pod(tmp_path: Path) -> None:
    values = all_parts(workers={"kind": "jobset"})
    one, two = (render(values, tmp_path, release) for release in ("shardtune", "second"))
    assert not names(one) & names(two)
    pods = [template["metadata"]["labels"] for manifest in two for template in pod_templates(manifest)]
    for manifest in one:
        if manifest["kind"] in ("NetworkPolicy", "Service", "PodDisruptionBudget", "Deployment", "StatefulSet"):
            spec = manifest["spec"]
            selector = spec.get("podSelector") or spec["selector"]
            labels = selector.get("matchLabels", selector)
            assert labels and not any(labels.items() <= pod.items() for pod in pods), manifest["metadata"]["name"]


def test_texts_arrive_as_they_are(tmp_path: Path) -> None:
    values = all_parts(
        service={
            "trustedProxies": ["10.244.0.0/16"],
            "settings": {"SHARDTUNE_CURRENCY": HOSTILE},
            "podAnnotations": {"note": HOSTILE},
        },
        workers={"kind": "one-host", "args": [HOSTILE], "podAnnotations": {"note": HOSTILE}},
    )
    manifests = {(item["kind"], item["metadata"]["name"]): item for item in render(values, tmp_path)}
    service = manifests["Deployment", "shardtune-service"]["spec"]["template"]
    (container,) = service["spec"]["containers"]
    assert {"name": "SHARDTUNE_CURRENCY", "value": HOSTILE} in container["env"]
    assert service["metadata"]["annotations"] == {"note": HOSTILE}
    assert (
        manifests["StatefulSet", "shardtune-worker"]["spec"]["template"]["spec"]["containers"][0]["args"][-1] == HOSTILE
    )


@pytest.mark.parametrize("kind", ["one-host", "autoscaled", "jobset", "trainer", "kuberay"])
def test_ranks_get_the_cards_of_their_host_and_the_variables_for_them(kind: str, tmp_path: Path) -> None:
    values = {
        "kind": kind,
        "env": {"NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NOTE": HOSTILE},
        "resources": {"limits": {"memory": "256Gi", "rdma/hca_shared_devices_a": "1"}},
        "podAnnotations": {"k8s.v1.cni.cncf.io/networks": "roce"},
    }
    manifests = render({"workers": values}, tmp_path)
    assert wrong_manifests(manifests) == []
    templates = [template for item in manifests for template in pod_templates(item)]
    with_ranks = [
        (template, container)
        for template in templates
        for container in template["spec"]["containers"]
        if "nvidia.com/gpu" in container["resources"].get("limits", {})
    ]
    ((template, container),) = with_ranks
    assert container["resources"]["limits"]["rdma/hca_shared_devices_a"] == "1"
    assert [item for item in container["env"] if item["name"] in values["env"]] == [
        {"name": name, "value": value} for name, value in values["env"].items()
    ]
    assert template["metadata"]["annotations"] == values["podAnnotations"]


def test_a_shell_reads_each_option_of_a_rayjob_as_it_is(tmp_path: Path) -> None:
    manifests = render({"workers": {"kind": "kuberay", "args": [HOSTILE, "--cold"]}}, tmp_path)
    (job,) = (item for item in manifests if item["kind"] == "RayJob")
    handover, key = "</run/shardtune/key ", tmp_path / "key"
    key.write_text("a key")
    assert job["spec"]["entrypoint"].startswith(handover)
    command = (
        job["spec"]["entrypoint"].removeprefix(handover).replace("python -m shardtune.workers", "printf '%s\\0'", 1)
    )
    printed = f"<{key} {command}"
    read = subprocess.run(["sh", "-c", printed], capture_output=True, text=True, check=True).stdout.split("\0")
    assert read[-3:] == [HOSTILE, "--cold", ""]


def test_a_model_name_stays_one_parameter_of_the_trigger(tmp_path: Path) -> None:
    values = {"workers": {"kind": "autoscaled", "autoscaling": {"allowModels": ["a&studies=9 b"]}}}
    (job,) = (item for item in render(values, tmp_path) if item["kind"] == "ScaledJob")
    assert job["spec"]["triggers"][0]["metadata"]["url"].endswith("?cluster=8xh100&allow_model=a%26studies%3D9+b")
    (container,) = job["spec"]["jobTargetRef"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--allow-model", "a&studies=9 b"]


@pytest.mark.parametrize(
    "example", [None, *sorted((DEPLOY / EXAMPLES).glob("*.yaml"))], ids=lambda path: str(path)[-12:]
)
def test_no_example_has_a_secret(example: Path | None) -> None:
    manifests = rendered(DEPLOY, example)
    assert not [item for item in manifests if item["kind"] == "Secret"]
    for item in manifests:
        for template in pod_templates(item):
            for container in template["spec"]["containers"]:
                values = {entry["name"] for entry in container.get("env", ()) if "value" in entry}
                assert not {name for name in values if name.endswith(("_KEY", "_TOKEN", "PASSWORD", "_URL"))}


def test_a_new_image_makes_a_new_migration_and_no_other_change_does(tmp_path: Path) -> None:
    first, same, other = (
        next(item["metadata"]["name"] for item in render(values, tmp_path) if item["kind"] == "Job")
        for values in ({}, {"service": {"replicas": 5}}, {"images": {"service": {"tag": "0.2.0"}}})
    )
    assert first == same != other


def test_one_replica_may_be_drained(tmp_path: Path) -> None:
    kinds = {item["kind"] for item in render({"service": {"replicas": 1}}, tmp_path)}
    assert "PodDisruptionBudget" not in kinds


@pytest.mark.parametrize("kind", ["none", "kuberay"])
def test_policies_are_left_to_the_cluster(kind: str, tmp_path: Path) -> None:
    values = all_parts(networkPolicies={"enabled": False}, workers={"kind": kind})
    assert "NetworkPolicy" not in {item["kind"] for item in render(values, tmp_path)}


def test_pods_run_as_an_account_that_stands_already(tmp_path: Path) -> None:
    values = all_parts(serviceAccount={"create": False, "name": "own"}, workers={"kind": "one-host"})
    manifests = render(values, tmp_path)
    assert "ServiceAccount" not in {item["kind"] for item in manifests}
    templates = [template for item in manifests for template in pod_templates(item)]
    assert len(templates) == 5 and {item["spec"]["serviceAccountName"] for item in templates} == {"own"}


def test_the_authority_replaces_cert_manager(tmp_path: Path) -> None:
    authority = base64.b64encode(b"certificate").decode()
    manifests = render({"recommender": {"enabled": True, "caBundle": authority}}, tmp_path)
    (webhook,) = (item for item in manifests if item["kind"] == "MutatingWebhookConfiguration")
    assert webhook["webhooks"][0]["clientConfig"]["caBundle"] == authority
    assert "annotations" not in webhook["metadata"]


@pytest.mark.parametrize(("answer_within_s", "timeout_s"), [(0.1, 6), (5, 10), (7.5, 13), (25, 30)])
def test_kubernetes_waits_longer_for_the_recommender_than_it_may_take(
    answer_within_s: float, timeout_s: int, tmp_path: Path
) -> None:
    manifests = render({"recommender": {"enabled": True, "answerWithinSeconds": answer_within_s}}, tmp_path)
    assert wrong_manifests(manifests) == []
    (webhook,) = (item for item in manifests if item["kind"] == "MutatingWebhookConfiguration")
    assert webhook["webhooks"][0]["timeoutSeconds"] == timeout_s
    assert f"--answer-within={answer_within_s:g}" in recommender_container(manifests)["args"]


def test_only_clients_of_the_authority_may_ask_the_recommender(tmp_path: Path) -> None:
    manifests = render({"recommender": {"enabled": True, "clientCaSecret": "own-ca"}}, tmp_path)
    assert wrong_manifests(manifests) == []
    container = recommender_container(manifests)
    (mount,) = (item for item in container["volumeMounts"] if item["name"] == "client-ca")
    assert f"--client-ca={mount['mountPath']}/ca.crt" in container["args"]
    assert "httpGet" not in container["readinessProbe"], "the probe of Kubernetes has no certificate"


@pytest.mark.parametrize("given", [{}, {"clientCaSecret": "own-ca"}])
def test_each_option_of_the_webhook_has_a_value(given: dict[str, Any], tmp_path: Path) -> None:
    arguments = recommender_container(render({"recommender": {"enabled": True, **given}}, tmp_path))["args"]
    (command,) = kubeflow.app.registered_commands
    assert command.callback is not None
    options = {f"--{name.replace('_', '-')}" for name in inspect.signature(command.callback).parameters}
    # The container's port is the command's own default.
    expected = options - {"--port"} - (set() if given else {"--client-ca"})
    assert {argument.partition("=")[0] for argument in arguments[1:]} == expected


def recommender_container(manifests: list[Manifest]) -> dict[str, Any]:
    (deployment,) = (
        item
        for item in manifests
        if item["kind"] == "Deployment" and item["metadata"]["name"] == "shardtune-recommender"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def names(manifests: list[Manifest]) -> frozenset[tuple[str, str]]:
    return frozenset((item["kind"], item["metadata"]["name"]) for item in manifests)
