"""Users' studies go first: when a retune gives up its worker, and when it keeps it."""

import pytest

from shardtune.api_schemas.trials.leases import Lease
from shardtune.api_schemas.trials.trial import RunPurpose
from shardtune.db.queries import leases
from shardtune.db.session import Database
from shardtune.service.process.context import Context
from shardtune.service.retuning import challenge_steps, queue
from shardtune.service.settings import Settings
from tests.flow.helpers.retuning_lab import ask
from tests.flow.retuning.retuning_settings import QUIET, purpose_of
from tests.support.service.local_client import local_client
from tests.support.service.scenarios import best
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

pytestmark = pytest.mark.answered


@pytest.fixture
def background(service):
    """A retune's study, begun."""
    client, context, worker = service
    ask(context, best(client)["target_key"])
    assert queue.start_due(context, challenge_steps.start_challenge) == 1
    return client, context, worker


@pytest.mark.wide_on_postgres
def test_a_users_study_takes_the_worker_after_the_present_run(background):
    client, _, worker = background
    lease = worker.lease()
    study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
    assert worker.heartbeat(lease)["action"] == "continue"
    worker.do(lease)
    taken = [worker.lease()]
    while taken[-1] is not None and len(taken) < 200:
        worker.do(taken[-1])
        taken.append(worker.lease())
    order = [lease.study_id == study_id for lease in taken[:-1]]
    assert order == sorted(order, reverse=True) and True in order and False in order


@pytest.mark.wide_on_postgres
def test_where_configured_a_retunes_run_gives_its_worker_up_at_once(database_url, spare_app, clock):
    settings = Settings(database_url=database_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(database_url), settings, clock)
    with local_client(spare_app) as client:
        worker = SimulatedWorker(client).register()
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)
        lease = worker.lease()
        assert worker.heartbeat(lease)["action"] == "continue"
        clock.turn(5)
        study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
        assert worker.heartbeat(lease) | {"lease_s": 0} == {
            "action": "stop",
            "reason": "lease lost: the attempt ended because a study wants its worker",
            "lease_s": 0,
            "is_draining": False,
        }
        assert worker.lease().study_id == study_id


def test_a_study_whose_project_has_no_gpu_seconds_left_takes_no_worker_from_a_retune(sqlite_url, spare_app, clock):
    """The retune got the worker back and lost it again at each heartbeat, and failed after fifty times."""
    settings = Settings(database_url=sqlite_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(sqlite_url), settings, clock)
    with local_client(spare_app) as client:
        worker = SimulatedWorker(client).register()
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)
        lease = worker.lease()
        clock.turn(5)
        client.post("/v1/studies", json=SPEC).raise_for_status()
        client.put("/v1/projects/default", json={"quotas": {"gpu_seconds_per_day": 1}}).raise_for_status()
        assert worker.heartbeat(lease)["action"] == "continue"


def test_a_study_whose_run_is_too_long_for_a_worker_takes_it_from_a_retune_once(sqlite_url, spare_app, clock):
    """The worker got the retune's run back each time, and lost it again at the next heartbeat."""
    settings = Settings(database_url=sqlite_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(sqlite_url), settings, clock)
    with local_client(spare_app) as client:
        worker = SimulatedWorker(client).register()
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)

        def leased(ends_in_s):
            clock.turn(5)
            return Lease.model_validate(worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": ends_in_s}).json())

        lease = worker.lease()
        while purpose_of(context, lease) != RunPurpose.VALIDATION:
            worker.do(lease)
            lease = worker.lease()
        study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
        assert worker.heartbeat(lease)["action"] == "stop", "the service cannot know yet that the worker ends soon"
        lease = leased(30)
        assert lease.study_id != study_id
        assert worker.heartbeat(lease)["action"] == "continue"
        worker.do(lease)
        lease = leased(30)
        assert worker.heartbeat(lease)["action"] == "continue", "nor from the retune's next run"
        clock.turn(5)
        later = client.post("/v1/studies", json=SPEC).json()["study_id"]
        assert worker.heartbeat(lease)["action"] == "stop", "a study that came later may have a run for it"
        assert leased(3600).study_id in (study_id, later)


def pause_and_resume(client, waiting, _ended):
    for action in ("pause", "resume"):
        client.post(f"/v1/studies/{waiting}:{action}").raise_for_status()


def extend(client, _waiting, ended):
    client.post(f"/v1/studies/{ended}:extend", json={"add_trials": 2}).raise_for_status()


@pytest.mark.parametrize("go_on", [pause_and_resume, extend])
def test_a_study_that_goes_on_later_takes_a_worker_that_was_taken_in_vain_before(sqlite_url, spare_app, clock, go_on):
    """Only its first start counted, so an extended study waited for the whole retune."""
    settings = Settings(database_url=sqlite_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(sqlite_url), settings, clock)
    with local_client(spare_app) as client:
        worker = SimulatedWorker(client).register()
        ended = best(client)["study_id"]
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)

        def leased(ends_in_s):
            clock.turn(5)
            return Lease.model_validate(worker.post("/v1/leases", {"wait_s": 0, "ends_in_s": ends_in_s}).json())

        lease = worker.lease()
        while purpose_of(context, lease) != RunPurpose.VALIDATION:
            worker.do(lease)
            lease = worker.lease()
        waiting = client.post("/v1/studies", json=SPEC).json()["study_id"]
        retune_run = lease.run_id
        assert worker.heartbeat(lease)["action"] == "stop"
        with context.db.read() as session:
            attempt = leases.attempt_of(session, retune_run, lease.attempt)
            assert attempt.end == "preempted"
        lease = leased(30)
        assert worker.heartbeat(lease)["action"] == "continue", "it was taken in vain"
        clock.turn(5)
        go_on(client, waiting, ended)
        assert worker.heartbeat(lease)["action"] == "stop"
        assert leased(3600).study_id in (waiting, ended)


def test_a_study_that_waits_for_the_worker_of_its_block_takes_no_other_from_a_retune(sqlite_url, spare_app, clock):
    """The retune's worker got nothing of the study, and lost its run again at each heartbeat."""
    settings = Settings(database_url=sqlite_url, **QUIET, retune_yields="at_once")
    spare_app.state.context = context = Context(Database(sqlite_url), settings, clock)
    with local_client(spare_app) as client:
        comparing = SimulatedWorker(client, name="comparing").register()
        retuning = SimulatedWorker(client, name="retuning").register()
        ask(context, best(client)["target_key"])
        queue.start_due(context, challenge_steps.start_challenge)
        lease = retuning.lease()
        study_id = client.post("/v1/studies", json=SPEC).json()["study_id"]
        while client.get(f"/v1/studies/{study_id}").json()["phase"] != "final_comparison":
            comparing.do(comparing.lease())
        comparing.do(comparing.lease())
        assert retuning.heartbeat(lease)["action"] == "continue"
        workers = client.get("/v1/workers").json()["workers"]
        (drained,) = (worker["worker_id"] for worker in workers if worker["name"] == "comparing")
        client.post(f"/v1/workers/{drained}:drain").raise_for_status()
        assert retuning.heartbeat(lease)["action"] == "stop", "the rest of the block is for any worker now"
