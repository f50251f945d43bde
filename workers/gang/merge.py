"""Inventory of a gang, merged from the inventories of its equal hosts: the service treats the gang as one worker."""

from collections.abc import Sequence

from shardtune.api_schemas.base import Dtype
from shardtune.api_schemas.machines.hardware import Fingerprint, Inventory
from shardtune.workers.gang.messages import NodeAddress, NodeReady


def fingerprint(hosts: Sequence[NodeReady]) -> Fingerprint:
    """Fingerprint of the gang (hardware and software versions). Numbers of GPUs are added up over the hosts; each
    memory size is the smallest of all hosts."""
    fingerprints = [host.inventory.fingerprint for host in hosts]
    first = fingerprints[0]
    return first.model_copy(
        update={
            "nodes": len(hosts),
            "gpu_count": sum(host_fingerprint.gpu_count for host_fingerprint in fingerprints),
            "host_memory_gib": min(host_fingerprint.host_memory_gib for host_fingerprint in fingerprints),
            "gpu_memory_gib": min(
                (
                    host_fingerprint.gpu_memory_gib
                    for host_fingerprint in fingerprints
                    if host_fingerprint.gpu_memory_gib is not None
                ),
                default=None,
            ),
        }
    )


def inventory(hosts: Sequence[NodeReady], addresses: Sequence[NodeAddress], spares: Sequence[str]) -> Inventory:
    """Inventory (hardware and software) with which a gang of hosts registers as one worker. `addresses` are the
    addresses at which ranks reach each host, in the order of the hosts."""
    offers = [host.inventory for host in hosts]
    first = offers[0]
    cluster = first.cluster.model_copy(
        update={
            "nodes": len(hosts),
            "memory_gib": min(offer.cluster.memory_gib for offer in offers),
            "host_memory_gib": min(offer.cluster.host_memory_gib for offer in offers),
        }
    )
    rates: dict[Dtype, float] = {
        dtype: min(offer.matmul_flops.get(dtype, rate) for offer in offers)
        for dtype, rate in first.matmul_flops.items()
    }
    named = [
        {"host": host.host, "interface": address.interface, "address": address.address}
        for host, address in zip(hosts, addresses, strict=True)
    ]
    details = {**first.details, "host": ", ".join(host.host for host in hosts), "hosts": named, "spares": list(spares)}
    return first.model_copy(
        update={
            "cluster": cluster,
            "fingerprint": fingerprint(hosts),
            "matmul_flops": rates,
            "measured": None,
            "details": details,
        }
    )
