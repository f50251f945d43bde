"""Contract of launchers, tested with the real daemons of each engine: how runs end, and that nothing is left.

Two hosts with two ranks each, or four ranks here; one gang for all, warm between the runs. Failures that the worker
reads from reports are tested with one engine. Ranks here, which tests of
agents, fork servers and whole studies start as well, and the wide table of strategies with SHARDTUNE_TEST_LONG=1.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest
from pydantic import TypeAdapter

from shardtune.api_schemas.machines.engines import EngineName, LauncherName
from shardtune.api_schemas.trials.leases import ResumeTask, TrialTask
from shardtune.api_schemas.trials.measurements import StepRecord
from shardtune.api_schemas.trials.resume_check import ResumePlan
from tests.lab import requirements
from tests.lab.laboratory import Laboratory, for_this_process
from tests.lab.session import GangSession
from tests.support.long_run import WIDE, telling
from tests.support.ranks.reference_training import deviation, train
from tests.support.ranks.tiny_tasks import LLAMA, tiny_task

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

FSDP2 = {"kind": "fsdp2", "dp_replicate": 2, "dp_shard": 2}
ENDLESS = {"parity_steps": 2, "min_windows": 100_000, "max_windows": 100_000}


@dataclass
class Place:
    """A session, and who else lives where it has its ranks."""

    laboratory: Laboratory | None
    session: GangSession
    at_rest: set[int]
    """Processes while no task runs."""

    def task(self, strategy: dict[str, Any], ranks: int = 4, **changes: Any) -> TrialTask:
        payload = tiny_task(strategy, ranks=ranks, **changes).model_dump(mode="json")
        hosts = {} if self.laboratory is None else {"nodes": ranks // 2, "gpus_per_node": 2}
        return TrialTask.model_validate({**payload, "cluster": {**payload["cluster"], **hosts, "memory_gib": 1}})

    def script(self, act: str) -> TrialTask:
        task = self.task({"kind": "ddp"}).model_dump(mode="json")
        return TrialTask.model_validate({**task, "model": {"script": act}})

    def await_ranks(self) -> None:
        until(lambda: len(living(self.laboratory, self.session) - self.at_rest) >= 4, "four ranks")

    def assert_nothing_is_left(self) -> None:
        """Wait for cleanup: ranks are gone when the result is there, but their cleanup may take a moment."""
        until(lambda: not living(self.laboratory, self.session) - self.at_rest, "nothing is left")


def living(laboratory: Laboratory | None, session: GangSession) -> set[int]:
    if laboratory is not None:
        return {pid for host in laboratory.nodes for pid in host.living()}
    return {child.pid for child in psutil.Process(session.process.pid).children(recursive=True)}


def until(condition: Any, description: str) -> None:
    ends_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends_s, description
        time.sleep(0.1)


@contextmanager
def opened(engine: str, folder: Path, hosts: int = 2) -> Iterator[Place]:
    """A session in a laboratory of its own, or here."""
    requirements.require("none" if engine == "local" else engine)
    with ExitStack() as stack:
        laboratory = None if engine == "local" else stack.enter_context(for_this_process(hosts, 2, engine=engine))
        place = Place(laboratory, GangSession(laboratory, folder, ranks=4 if laboratory is None else 2), set())
        stack.callback(lambda: place.session.close())
        place.session.ready()
        place.at_rest = living(laboratory, place.session)
        yield place


ENGINES = get_args(LauncherName)


def engines(*often: str) -> pytest.MarkDecorator:
    """Engines that always run a test; the others run it in the long run."""
    return pytest.mark.parametrize("shared", telling(ENGINES, often), indirect=True)


@pytest.fixture(scope="module", params=telling(ENGINES, get_args(EngineName)))
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(request.param, tmp_path_factory.mktemp(request.param)) as place:
        yield place


@pytest.fixture
def place(shared: Place) -> Iterator[Place]:
    yield shared
    shared.assert_nothing_is_left()


def test_a_trial_trains_over_all_hosts(place: Place) -> None:
    answer = place.session.run(place.task(FSDP2, parity_steps=2))
    assert answer["kind"] == "Measurement", answer
    hosts = [node["host"] for node in answer["result"]["conditions"]["nodes"]]
    assert len(set(hosts)) == (1 if place.laboratory is None else 2)
    assert len(answer["result"]["ranks"]) == 4


@engines("slurm")
def test_a_rank_without_memory_is_told_as_that(place: Place) -> None:
    answer = place.session.run(place.script("oom"))
    assert (answer["kind"], answer["result"]["kind"], answer["result"]["rank"]) == ("Failure", "oom", 3)


@engines("ray")
def test_a_crash_comes_with_its_words_and_its_rank(place: Place) -> None:
    answer = place.session.run(place.script("crash"))
    assert (answer["result"]["kind"], answer["result"]["rank"]) == ("crash", 3)
    assert "planted" in answer["result"]["message"] + (answer["log_tail"] or "")


@engines("slurm")
def test_ranks_that_do_not_move_are_ended(place: Place) -> None:
    answer = place.session.run(place.script("hang"), no_progress_s=3)
    assert answer["result"]["kind"] == "no_progress"


@engines("ray")
def test_a_run_ends_at_its_deadline(place: Place) -> None:
    answer = place.session.run(place.script("hang"), deadline_s=3)
    assert answer["result"]["kind"] == "deadline"


def test_a_cancelled_run_is_nobody_s_result(place: Place) -> None:
    place.session.begin(place.task({"kind": "ddp"}, **ENDLESS))
    place.await_ranks()
    place.session.cancel()
    assert place.session.result()["kind"] == "interrupted"


def test_a_killed_rank_takes_the_others_along(place: Place) -> None:
    place.session.begin(place.task({"kind": "ddp"}, **ENDLESS))
    place.await_ranks()
    psutil.Process(max(living(place.laboratory, place.session) - place.at_rest)).send_signal(signal.SIGKILL)
    assert place.session.result()["result"]["kind"] == "rank_lost"


@engines()
def test_a_checkpoint_goes_on_in_new_processes(place: Place) -> None:
    """tests/rank/test_two_hosts.py always saves and loads on two hosts, without an engine."""
    plan = ResumePlan(fewest_steps=4, most_steps=6, steps_after=4)
    answer = place.session.run(ResumeTask(trial=place.task(FSDP2, parity_steps=4), plan=plan))
    assert answer["kind"] == "ResumeMeasurement", answer


STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"kind": "ddp"},
    "zero-1": {"kind": "zero", "stage": 1},
    "zero-2": {"kind": "zero", "stage": 2},
    "zero-3": {"kind": "zero", "stage": 3},
    "fsdp1": {"kind": "fsdp1", "dp_shard": 4},
    "fsdp1 hybrid": {"kind": "fsdp1", "dp_replicate": 2, "dp_shard": 2, "sharding_strategy": "HYBRID_SHARD"},
    "fsdp2": {"kind": "fsdp2", "dp_shard": 4},
    "fsdp2 hybrid": FSDP2,
    "fsdp2 replicated": {"kind": "fsdp2", "dp_replicate": 4, "dp_shard": 1},
}
BUCKETS = {"reduce_bucket_size": 50_000, "allgather_bucket_size": 50_000}
"""DeepSpeed's, cut to the tiny model."""
BOUND = {"loss": 1e-5, "grad_norm": 1e-4, "parameter_sum": 1e-6, "parameter_square_sum": 1e-6}
TWO_BLOCKS = {"model": LLAMA | {"num_hidden_layers": 2}, "parity_steps": 4}


@pytest.mark.parametrize("name", telling(STRATEGIES, ["zero-3"]))
@pytest.mark.parametrize("shared", ["slurm"], indirect=True)
def test_a_strategy_over_hosts_trains_as_one_process(place: Place, name: str) -> None:
    strategy = STRATEGIES[name] | (BUCKETS if STRATEGIES[name]["kind"] == "zero" else {})
    assert_trains_as_one(place, strategy, 4)


def assert_trains_as_one(place: Place, strategy: dict[str, Any], ranks: int) -> None:
    task = place.task(strategy, ranks=ranks, **TWO_BLOCKS)
    answer = place.session.run(task)
    assert answer["kind"] == "Measurement", answer
    largest_deviation = deviation(
        TypeAdapter(tuple[StepRecord, ...]).validate_python(answer["result"]["trajectory"]), train(task)
    )
    assert all(largest_deviation[subject] <= BOUND[subject] for subject in BOUND), largest_deviation


@WIDE
def test_hybrid_meshes_over_four_hosts_train_as_one_process(tmp_path: Path) -> None:
    with opened("slurm", tmp_path, hosts=4) as place:
        for shards in (1, 2, 4, 8):
            strategy = {"kind": "fsdp2", "dp_replicate": 8 // shards, "dp_shard": shards}
            assert_trains_as_one(place, strategy, 8)
        place.assert_nothing_is_left()


def test_who_is_stopped_while_starting_leaves_nothing(shared: Place, tmp_path: Path) -> None:
    """The last one: it ends the gang of the others."""
    shared.session.close()
    without = set() if shared.laboratory is None else living(shared.laboratory, shared.session)
    shared.session = GangSession(shared.laboratory, tmp_path, ranks=2)
    # A host here: its warm one and what looks at the machine; two hosts: the session, its allocation and fork servers.
    begun = 2 if shared.laboratory is None else 4
    until(lambda: len(living(shared.laboratory, shared.session) - without) >= begun, "something starts")
    for pid in own_processes(shared):
        psutil.Process(pid).send_signal(signal.SIGTERM)
    shared.session.process.wait(60)
    if shared.laboratory is not None:
        until(lambda: not living(shared.laboratory, shared.session) - without, "nothing is left")


def own_processes(place: Place) -> set[int]:
    """The session's own, where it runs."""
    if place.laboratory is None:
        return {place.session.process.pid}
    actual = {pid for host in place.laboratory.hosts for pid in host.find("-m tests.lab.gang_session")}
    return {pid for pid in actual if "python" in psutil.Process(pid).name()}
