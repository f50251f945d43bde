"""Histories drawn at random through the real service: each sentence about runs is borne out by the rows."""

import html
import random

import pytest

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.studies.study import Study
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.leases import TASK_KINDS
from shardtune.api_schemas.trials.trial import Trial
from shardtune.service.cli import summary
from shardtune.service.wording.answers.how_measured import speed_reasons
from shardtune.service.wording.result_runs import result_runs
from shardtune.service.wording.trust import trust
from tests.flow.helpers.sentence_checks import false_sentences, rows_of
from tests.support.long_run import IS_LONG
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, failure, measurement, restarted, speed_of


class Machine:
    """Two workers on a machine whose load changes at random, and is seen or not."""

    def __init__(self, client, draw):
        self.draw, self.spread = draw, draw.choice((0.01, 0.05, 0.3))
        self.busy, self.gain = draw.choice((0.0, 0.2, 0.7, 1.0)), draw.choice((0.0, 0.1, 1.0, -0.4))
        self.workers = [
            SimulatedWorker(
                client, name=f"w{number}", behave=self.run, resume_check=self.resume, task_kinds=TASK_KINDS
            ).register()
            for number in (0, 1)
        ]

    def run(self, lease, task):
        if self.draw.random() < 0.05:
            return failure(self.draw.choice((FailureKind.OOM, FailureKind.CRASH, FailureKind.WORKER_LOST)))
        is_busy = self.draw.random() < self.busy
        speed = speed_of(task.config) * (1 + self.gain * (lease.trial_number > 2))
        speed *= self.draw.choice((0.4, 0.7)) if is_busy else self.draw.lognormvariate(0, self.spread)
        above = task.plan.prune_above_s
        run = measurement(speed).model_copy(update={"conditions": Conditions(foreign_cpu_cores=1.4 * is_busy)})
        is_early = above is not None and run.step_time_s > above
        return run.model_copy(update={"is_pruned": True, "measured_steps": 4} if is_early else {})

    def resume(self, _lease):
        return restarted(5.0 if self.draw.random() < 0.8 else 5.2)

    def work(self):
        worker, idle = self.workers[0], 0
        while idle < 2:
            # A change of the worker within a block makes it a lost one.
            worker = self.draw.choice(self.workers) if self.draw.random() < 0.05 else worker
            lease = worker.lease()
            worker, idle = (worker, 0) if lease is not None else (self.workers[worker is self.workers[0]], idle + 1)
            if lease is not None:
                worker.do(lease)


def drawn_study(client, draw):
    """The id of a study that has ended; some were extended, by trials or by pairs."""
    machine = Machine(client, draw)
    budget = {
        "max_trials": draw.randint(1, 10), "max_pairs": draw.choice((7, 10)),
        "repeat_disturbed": draw.choice((0.0, 0.5)),
    }  # fmt: skip
    backends = draw.choice((["ddp"], ["ddp", "zero", "fsdp2"]))
    baseline = draw.choice((None, {"strategy": {"kind": "ddp"}}))
    body = SPEC | {"budget": budget, "space": {"backends": backends}, "seed": draw.randrange(99), "baseline": baseline}
    study_id = client.post("/v1/studies", json=body).json()["study_id"]
    machine.work()
    more = draw.choice((None, {"add_pairs": 5}, {"add_trials": 3}))
    if more is not None and client.post(f"/v1/studies/{study_id}:extend", json=more).is_success:
        machine.work()
    return study_id


@pytest.mark.parametrize("seed", range(12 if IS_LONG else 6))
def test_each_sentence_about_runs_is_borne_out_by_the_rows(quick_client, context, seed):
    study_id = drawn_study(quick_client, random.Random(seed))
    study = Study.model_validate(quick_client.get(f"/v1/studies/{study_id}").json())
    if study.result is None:
        return
    listed = quick_client.get(f"/v1/studies/{study_id}/trials").json()["trials"]
    trials = [Trial.model_validate(trial) for trial in listed]
    stored = result_runs(study, study.result, trials)
    sentences = [reason.text for reason in (*trust(study, stored), *speed_reasons(study.result, stored))]
    # Without those about the request, and about the disk.
    sentences = [text for text in sentences if text not in study.warnings and not text.startswith("checkpoints: ")]
    page = html.unescape(quick_client.get(f"/studies/{study_id}").text)
    # The page begins some of them with a capital.
    missing = [text for text in sentences if text not in page and text[:1].upper() + text[1:] not in page]
    assert missing == [], "the page tells another story"
    lines = summary.as_text(study, study.result, trials).splitlines()
    again = [line.strip() for line in lines if "all configurations run again took " in line]
    again = [line.removeprefix("measured").strip() for line in again]
    with context.db.read() as session:
        assert false_sentences(rows_of(session, study_id, study.result), [*sentences, *again]) == []
