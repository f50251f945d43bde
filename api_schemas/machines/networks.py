"""Networks between nodes by name, with their nominal bandwidth and its source."""

from dataclasses import dataclass
from typing import Literal

from shardtune.api_schemas.formatting import counted

NetworkName = Literal["infiniband-hdr", "infiniband-ndr", "infiniband-xdr", "roce-400", "efa-p5", "tcp-100"]
"""Name of a network between nodes."""
_BITS = 8


@dataclass(frozen=True)
class NetworkPreset:
    """Network between nodes, with its nominal bandwidth. What trainings reach on it was not checked."""

    gbit_per_s: float
    """Bandwidth in Gbit/s and direction: of one GPU's port, or of the whole node."""
    per: Literal["GPU", "node"]
    source: str


NETWORKS: dict[NetworkName, NetworkPreset] = {
    "infiniband-hdr": NetworkPreset(200.0, "GPU", "DGX A100: one 200 Gb/s HDR port for each GPU"),
    "infiniband-ndr": NetworkPreset(400.0, "GPU", "DGX H100: one 400 Gb/s NDR port for each GPU"),
    "infiniband-xdr": NetworkPreset(800.0, "GPU", "ConnectX-8: one 800 Gb/s XDR port for each GPU"),
    "roce-400": NetworkPreset(400.0, "GPU", "one 400 Gb/s Ethernet port with RoCE for each GPU"),
    "efa-p5": NetworkPreset(3200.0, "node", "AWS p5.48xlarge: 3,200 Gb/s of EFA"),
    "tcp-100": NetworkPreset(100.0, "node", "one 100 Gb/s Ethernet port for each node"),
}


def gb_per_s_of_node(name: NetworkName, gpus_per_node: int) -> float:
    """Nominal bandwidth of one node on a network, in GB/s per direction."""
    network = NETWORKS[name]
    return network.gbit_per_s / _BITS * (gpus_per_node if network.per == "GPU" else 1)


def network_note(name: NetworkName, gpus_per_node: int) -> str:
    """Note on a network that a request names, with its source."""
    bandwidth = gb_per_s_of_node(name, gpus_per_node)
    return f"network ({name}): {bandwidth:g} GB/s a node, unchecked ({NETWORKS[name].source})"


def leaf_switches_note(nodes_per_leaf: int | None, oversubscription: float | None) -> str | None:
    """Note on the leaf switches that a request states; None if it states none."""
    if nodes_per_leaf is None:
        return None
    nodes = counted(nodes_per_leaf, "node")
    if oversubscription is None or oversubscription <= 1:
        return (
            f"leaf switches of {nodes} each without oversubscription limit nothing; state oversubscription if they do"
        )
    return (
        f"leaf switches of {nodes} each, {oversubscription:g}:1 oversubscribed: stated, not measured. Nodes are assumed to be "
        "placed leaf by leaf; over several leaves, the low end of a band allows for any other order"
    )
