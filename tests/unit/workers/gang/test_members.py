"""Hosts that are equal enough to train together."""

import pytest

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.tuner.freshness.fingerprints import POLICY, stale_fields
from shardtune.workers.gang.members import differences, explain_rejection, largest_equal
from shardtune.workers.gang.messages import NodeReady

HOST_FACTS = {
    "device": "cuda",
    "gpu": "A",
    "gpu_count": 8,
    "nodes": 1,
    "gpu_memory_gib": 80.0,
    "gpu_links": "28×NV18",
    "pcie_gb_per_s": 63.0,
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 2619,
    "power_limit_w": 700.0,
    "driver": "560.35.03",
    "cuda": "12.8",
    "nccl": "2.27",
    "torch": "2.13.0",
    "deepspeed": "0.19.8",
    "transformers": "5.17.0",
    "python": "3.11.7",
    "kernel": "6.1.0-13",
    "cpu": "X",
    "cpu_count": 64,
    "cpu_topology": "2 sockets",
    "cpu_max_mhz": 3800,
    "host_memory_gib": 1024.0,
    "nics": "8×400 Gb/s InfiniBand",
    "intra_node_gb_per_s": 400.0,
    "inter_node_gb_per_s": 40.0,
    "native_dtypes": "float32, bfloat16",
    "environment": ("NCCL_ALGO=Ring",),
}
BY_A_LITTLE = {"python": "3.11.8", "kernel": "6.1.0-14"}
BY_MUCH = {"python": "3.12.1", "kernel": "6.8.0-1"}
OF_THE_GANG = {"intra_node_gb_per_s", "inter_node_gb_per_s"}


def host(device: str = "cuda", **changes: object) -> NodeReady:
    own = Fingerprint.model_validate({**HOST_FACTS, "device": device, **changes})
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    return NodeReady(
        host="n",
        inventory=Inventory(cluster=cluster, fingerprint=own),
        isolation="",
        addresses=(),
        code={"script a": "1"},
    )


def changed(field: str, share: float) -> object:
    value = HOST_FACTS[field]
    if isinstance(value, int | float):
        return type(value)(value * share)
    return (BY_A_LITTLE if share > 0.99 else BY_MUCH).get(field, f"{value} another")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("share", [0.997, 0.985, 0.95, 0.5])
@pytest.mark.parametrize("field", sorted(POLICY.keys() - OF_THE_GANG - {"device", "nodes", "environment"}))
def test_hosts_are_equal_where_their_measurements_would_compare(field: str, share: float, device: str) -> None:
    single_host, other = host(device), host(device, **{field: changed(field, share)})
    is_stale = bool(stale_fields(single_host.inventory.fingerprint, other.inventory.fingerprint, nodes=2))
    assert bool(differences(single_host, other)) == is_stale


def test_hosts_with_other_variables_are_not_equal() -> None:
    assert differences(host(), host(environment=("NCCL_ALGO=Tree",))) == [
        "environment (NCCL_ALGO=Ring and NCCL_ALGO=Tree)"
    ]


def test_the_same_name_with_other_code_in_it_is_another_host() -> None:
    single_host = host()
    other = single_host.model_copy(update={"code": {"script a": "2"}})
    assert differences(single_host, other) == ["script a (1 and 2)"]
    assert differences(single_host, single_host.model_copy(update={"code": {}})) == ["script a (1 and missing)"]


def test_the_largest_set_of_equal_hosts_is_taken_in_the_order_of_hosts() -> None:
    hosts = [("a", host(torch="1")), ("b", host()), ("c", host()), ("d", host(torch="1")), ("e", host())]
    assert [name for name, _ in largest_equal(hosts)] == ["b", "c", "e"]


def test_a_rejection_names_hosts_field_and_both_values() -> None:
    words = explain_rejection(2, [("a", host()), ("b", host(driver="570"))])
    assert "b differs from a in driver (560.35.03 and 570)" in words and "nodes (2)" in words
