"""Real ranks over two node processes on this machine: they meet, train what one host trains, and leave with the agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtune.api_schemas.leases import TrialTask
from shardtune.workers.agent.attempt import Workplace, attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.gang.hosts import GangPlan
from shardtune.workers.gang.launcher import GangLauncher
from shardtune.workers.gang.messages import Begin
from shardtune.workers.gang.pipe import NODE_COMMAND
from shardtune.workers.trial_dir import TrialDir
from tests.support.local_hosts import LocalHosts
from tests.support.tiny_trials import tiny_task

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GangLauncher]:
    engine = LocalHosts(("n0", "n1"), tmp_path_factory.mktemp("hosts"), "unused", command=NODE_COMMAND)
    begin = Begin(settings={"ranks": 1, "min_free_gib": 0, "build_operators": False}, lease_s=8)
    launcher = GangLauncher(engine, GangPlan(2, begin), wait_s=300)
    launcher.prepare(lambda: False)
    yield launcher
    launcher.close()


def over(nodes: int, task: TrialTask) -> TrialTask:
    cluster = {"nodes": nodes, "gpus_per_node": task.cluster.world_size // nodes}
    return task.model_copy(update={"cluster": task.cluster.model_copy(update=cluster)})


def run(gang: GangLauncher, folder: Path, task: TrialTask):
    offered = gang.inventory
    place = Workplace(folder, gang, offered.fingerprint, offered.cluster.world_size, None, 0, nodes=2)
    made = attempt(
        place,
        task,
        lambda: TrialDir.create(folder, "run-1", task, offered.fingerprint, 0),
        RunLimits(300, 120),
        lambda: None,
    )
    assert made is not None
    return made.result


def test_two_hosts_train_what_one_host_trains(gang: GangLauncher, host, tmp_path: Path) -> None:
    task = tiny_task({"kind": "fsdp2", "dp_shard": 2}, parity_steps=3, global_batch=4)
    alone = host.run(task)[0]
    together = run(gang, tmp_path, over(2, task))
    assert [step.loss for step in together.trajectory] == pytest.approx(
        [step.loss for step in alone.trajectory], rel=1e-5
    )
    assert [node.ranks for node in together.conditions.nodes] == [1, 1]
    assert len(together.nodes) == 2


def test_a_trial_of_one_host_runs_on_one_of_them(gang: GangLauncher, tmp_path: Path) -> None:
    measured = run(gang, tmp_path, tiny_task({"kind": "ddp"}, ranks=1, parity_steps=3, global_batch=2))
    assert measured.losses
