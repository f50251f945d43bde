"""Pods reach what the manifests name, and nothing else: no private network, and not the cloud's metadata service."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
POLICIES = [
    policy
    for path in sorted(KUBERNETES.rglob("*.yaml"))
    for policy in yaml.safe_load_all(path.read_text())
    if policy and policy.get("kind") == "NetworkPolicy"
]
DNS = {"port": 53, "protocol": "TCP"}
INSIDE = ("169.254.169.254", "10.96.0.1", "172.16.3.4", "192.168.1.1", "100.64.0.1", "127.0.0.1", "fd00::1", "fe80::1")


def reaches(block: dict, address: str) -> bool:
    is_in = [ip_address(address) in ip_network(network) for network in (block["cidr"], *block.get("except", []))]
    return is_in[0] and not any(is_in[1:])


def test_all_traffic_that_no_rule_allows_is_denied():
    (denied,) = [policy["spec"] for policy in POLICIES if policy["metadata"]["name"] == "nothing-else"]
    assert denied == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["metadata"]["name"])
def test_no_rule_leads_to_a_private_network_or_to_metadata(policy):
    # The node's own cache of names has a link-local address.
    rules = [rule for rule in policy["spec"].get("egress", []) if DNS not in rule.get("ports", [])]
    blocks = [peer["ipBlock"] for rule in rules for peer in rule.get("to", []) if "ipBlock" in peer]
    assert [(block, address) for block in blocks for address in INSIDE if reaches(block, address)] == []


def test_a_worker_reaches_the_service_and_the_other_hosts_of_its_gang_only():
    of_workers = [policy for policy in POLICIES if policy["metadata"]["name"] == "asks-service"]
    (spec,) = [policy["spec"] for policy in of_workers]
    (rule,) = spec["egress"]
    assert rule["to"] == [{"podSelector": {"matchLabels": {"app": "shardtune-service"}}}]
