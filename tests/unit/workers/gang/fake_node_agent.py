"""A node agent whose fork server is `fake_fork_server.py`: everything between agent and ranks is real, what takes seconds is not there.

`fake_node_agent.py HOST MARK`; what a host says of itself may be changed by NODE_SAYS, a JSON object of fields of its fingerprint, and
later by a file of such, `says.json` in its temporary folder.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from shardtune.api_schemas.machines.hardware import Cluster, Fingerprint, Inventory
from shardtune.workers.config.allowlist import Allowed
from shardtune.workers.gang.messages import Begin, NodeReady
from shardtune.workers.launchers.local import LocalLauncher
from shardtune.workers.machine.conditions import HostObserver
from shardtune.workers.node import __main__ as node
from shardtune.workers.node import addresses
from shardtune.workers.node.agent_line import AgentConnection
from shardtune.workers.node.serve import Node, code_digests, host_settings
from tests.support.workers.worker_fakes import FAKE_HOST

UNKNOWN = ("driver", "cuda", "nccl", "torch", "deepspeed", "transformers", "gpu_memory_gib")


def serve(begin: Begin, line: AgentConnection) -> None:
    host, mark = sys.argv[1:3]
    settings = host_settings(begin)
    settings.work_dir.mkdir(parents=True, exist_ok=True)
    allowed = Allowed.of(settings.allowed_models, settings.allowed_scripts)
    launcher = LocalLauncher(
        dict(os.environ),
        mark,
        settings.work_dir / "host.log",
        30,
        commands=(FAKE_HOST, FAKE_HOST),
        observer=HostObserver(None, host),
    )
    try:
        prepared = launcher.prepare(lambda: line.is_over)
        line.send(
            NodeReady(
                host=host,
                inventory=_inventory(settings.ranks or 1),
                isolation=prepared.isolation,
                addresses=addresses.of_this_host(),
                code=code_digests(allowed),
            )
        )
        Node(settings, allowed, line, launcher, lambda: _inventory(settings.ranks or 1).fingerprint).carry_out_orders()
    finally:
        launcher.close()


def _inventory(ranks: int) -> Inventory:
    defaults = {
        "device": "cpu",
        "gpu": "cpu",
        "gpu_count": 0,
        "python": "3.11",
        "kernel": "6",
        "cpu": "x",
        "cpu_count": 2,
    }
    later = Path(tempfile.gettempdir()) / "says.json"
    own = json.loads(later.read_text() if later.exists() else os.environ.get("NODE_SAYS", "{}"))
    facts = {**dict.fromkeys(UNKNOWN), **defaults, "host_memory_gib": 8, **own}
    cluster = Cluster(device="cpu", gpus_per_node=ranks, memory_gib=4, host_memory_gib=8)
    return Inventory(cluster=cluster, fingerprint=Fingerprint.model_validate(facts))


if __name__ == "__main__":
    sys.exit(node.main(serve))
