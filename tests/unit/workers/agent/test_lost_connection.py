"""A worker that cannot hear the service ends its ranks before the service gives the run to somebody else."""

import threading
import time

import httpx
import pytest

from shardtune.workers.agent.attempt import Workplace
from shardtune.workers.agent.client import WorkerClient
from shardtune.workers.agent.loop import Agent
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.machine.inventory import Gpus, Libraries, inventory
from tests.support.service.replica import Replica
from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC, SimulatedWorker
from tests.unit.workers.agent.loopback_proxy import LoopbackProxy

LEASE_S = 4


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut-off")
    times = {"lease_s": LEASE_S, "heartbeat_s": 0.3, "sweep_s": 0.1, "poll_s": 0.1, "run_deadline_s": 120}
    with Replica(f"sqlite:///{folder}/shardtune.sqlite3", folder / "service.log", **times) as replica:
        replica.wait_until_ready()
        yield replica


@pytest.fixture
def proxy(replica):
    host, port = replica.url.removeprefix("http://").split(":")
    opened = LoopbackProxy((host, int(port)))
    yield opened
    opened.close()


def wait_for(condition):
    """The first true answer; pytest's own limit ends a wait for ever."""
    while not (actual := condition()):
        time.sleep(0.02)
    return actual


@pytest.mark.parametrize("mode", ["cut", "hold", "half_close"])
def test_ranks_are_gone_before_the_lease_is_given_away(mode, replica, proxy, warm, tmp_path):
    offered = inventory(Gpus(driver=None, devices=()), Libraries(), 2, 4.0)
    interrupt = Interrupt()
    settings = WorkerSettings(service=proxy.url, work_dir=tmp_path, name=f"box-{mode}", min_free_gib=0)
    place = Workplace(tmp_path, warm("busy", "busy"), offered.fingerprint, 2, None, 0)
    agent = Agent(settings, WorkerClient(settings.service, timeout_s=1.0), place, offered, interrupt)
    with httpx.Client(base_url=replica.url, timeout=30, trust_env=False) as client:
        other = SimulatedWorker(client, cluster=offered.cluster, fingerprint=offered.fingerprint, name=mode).register()
        study_id = client.post("/v1/studies", json=SPEC | {"cluster": offered.cluster.model_dump()}).json()["study_id"]
        other.report(other.lease(), MODEL_SUMMARY).raise_for_status()
        observed = []

        def watch():
            try:
                progress = wait_for(lambda: next(tmp_path.glob("run-*-1/progress.json"), None))
                proxy.fail(mode)
                outcome = progress.with_name("outcome.json")

                def first_end():
                    (trial,) = client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
                    attempt = trial["runs"][0]["attempts"][0]
                    # The service's word first: had it given the run away with ranks alive, there would be no outcome.
                    return attempt["end"], outcome.exists() and outcome.read_text()

                # With answers held back, heartbeats still arrive: the service may go on believing in the worker.
                observed.append(wait_for(lambda: actual_first_end if any(actual_first_end := first_end()) else None))
            finally:
                interrupt.signal = 15
                proxy.fail("pass")

        # Ranks start from the main thread only, so it is the watching that happens elsewhere.
        watcher = threading.Thread(target=watch)
        watcher.start()
        agent.run()
        watcher.join()
        client.post(f"/v1/studies/{study_id}:cancel").raise_for_status()
    (end, outcome) = observed[0]
    assert outcome and "interrupted" in outcome, end
