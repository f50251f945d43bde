"""Ranks use the one interface that joins the hosts."""

from shardtune.workers.gang.messages import NodeAddress
from shardtune.workers.gang.rendezvous import interface_variables

BOND = NodeAddress(interface="bond0", address="10.0.0.1")


def test_nccl_uses_no_interface_whose_name_only_begins_alike() -> None:
    variables = {"GLOO_SOCKET_IFNAME": "bond0", "NCCL_SOCKET_IFNAME": "=bond0", "TP_SOCKET_IFNAME": "bond0"}
    assert interface_variables(BOND, {}) == variables


def test_a_variable_of_the_worker_keeps_its_value() -> None:
    assert "NCCL_SOCKET_IFNAME" not in interface_variables(BOND, {"NCCL_SOCKET_IFNAME": "ib"})
