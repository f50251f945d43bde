"""A worker rehearses a projected configuration in processes of one of its ranks, whatever becomes of them."""

import uuid
from collections.abc import Callable, Iterator

import psutil
import pytest

from shardtune.api_schemas.trials.leases import RehearsalTask, TargetRehearsalTask
from shardtune.api_schemas.trials.rehearsals import RehearsalReport
from shardtune.tuner.projection import rehearsal
from shardtune.workers.agent.attempt import AttemptResult, Workplace, run_attempt
from shardtune.workers.agent.supervise import RunLimits
from shardtune.workers.rank.rehearsal import parts
from shardtune.workers.trial_dir import TrialDir
from tests.rank.helpers.faulty_rehearsal import FAULTS
from tests.rank.helpers.target_tasks import at_target
from tests.rank.helpers.workplaces import workplace
from tests.support.long_run import wide
from tests.support.processes.command_line import children_with
from tests.support.processes.stack import until

pytestmark = pytest.mark.ranks

FAULTY = "tests.rank.helpers.faulty_rehearsal"
MODULE = "shardtune.workers.rank.rehearsal"
LIMITS = RunLimits(deadline_s=500, no_progress_s=60)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """A worker's place with a real fork server, and two ranks."""
    with workplace(tmp_path_factory.mktemp("rehearsal"), ranks=2) as made:
        yield made


def task_of_512_ranks() -> TargetRehearsalTask:
    trial = at_target({"kind": "fsdp2", "dp_shard": 512})
    return TargetRehearsalTask(trial=trial, parts=tuple(rehearsal.tasks(trial)))


def attempt(
    place: Workplace, task: TargetRehearsalTask, interrupted: Callable[[], str | None] = lambda: None
) -> AttemptResult | None:
    def directory() -> TrialDir:
        return TrialDir.create(place.work_dir, uuid.uuid4().hex, task, place.fingerprint, 0)

    return run_attempt(place, task, directory, LIMITS, interrupted)


def rehearsing() -> list[psutil.Process]:
    """Rehearsing processes that this test has started, at any depth."""
    return children_with(MODULE)


def test_a_worker_of_two_ranks_rehearses_512_and_occupies_one(place: Workplace) -> None:
    attempted = attempt(place, task_of_512_ranks())
    assert attempted is not None and isinstance(attempted.result, RehearsalReport), attempted
    assert attempted.held_ranks == 1 and attempted.gpu_seconds == attempted.elapsed_s
    seen = [answer.seen for answer in attempted.result.answers if answer.seen is not None]
    assert [one.blocks for one in seen] == [4, 8]
    assert seen[0].peak_bytes < seen[1].peak_bytes and seen[0].process_groups == 1


def test_a_rehearsal_that_is_stopped_leaves_no_process(place: Workplace) -> None:
    stopped = attempt(place, task_of_512_ranks(), lambda: "cancelled" if rehearsing() else None)
    assert stopped is None
    until(lambda: not rehearsing(), 30, "the end of the rehearsing process")


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("killed", "crashed", "ended by signal 9 without an answer"),
        ("hangs", "time", "took more than 5 s"),
        ("nan", "crashed", "without an answer"),
        *(wide(fault, "crashed", "without an answer") for fault in ("huge", "negative", "both")),
        ("nothing", "crashed", "ended with exit code 0 without an answer"),
        ("exits", "crashed", "ended with exit code 7 without an answer"),
    ],
)
def test_a_process_that_dies_hangs_or_writes_nonsense_is_a_problem(fault: str, code: str, words: str) -> None:
    part = RehearsalTask(trial=at_target({"kind": "fsdp2", "dp_shard": 512}), rank=FAULTS.index(fault))
    # Python and the schemas are loaded within a second or two.
    problem = parts.ask(part, 5.0 if fault == "hangs" else 60.0, FAULTY).problem
    assert problem is not None and problem.code == code and words in problem.message


def test_a_host_without_free_memory_starts_no_process() -> None:
    report = parts.rehearse(task_of_512_ranks(), least_free=1 << 60)
    (answer,) = report.answers
    assert answer.problem is not None and answer.problem.code == "memory"
    assert "another machine" in answer.problem.message and report.elapsed_s < 5


def test_the_first_problem_ends_a_rehearsal() -> None:
    task = task_of_512_ranks().model_copy(update={"part_limit_s": 0.2})
    assert [answer.problem.code for answer in parts.rehearse(task).answers if answer.problem] == ["time"]
