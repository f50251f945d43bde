"""Studies that consider recipes, and the measurements of simulated workers for them."""

from shardtune.api_schemas.trials.leases import TASK_KINDS, TrialTask
from tests.support.service.simulated_worker import (
    SPEC,
    measurement,
    on_quiet_machine,
    speed_of,
)

NEW = {"task_kinds": TASK_KINDS}
STEPS = 40
LOSSES = [5.0 - 0.01 * step for step in range(STEPS)]
WORKLOAD = SPEC["workload"] | {"precision": "bf16-mixed"}
CONSIDERING = SPEC | {
    "workload": WORKLOAD,
    "consider_steps": STEPS,
    "space": {"backends": ["ddp", "zero", "fsdp2"]},
    # Each backend's default, and one more.
    "budget": {"max_trials": 4},
}
FACTOR = {"bf16-mixed": 1.0, "bf16-true": 1.3, "fp32": 0.5}
LAG = {"bf16-mixed": 0.0, "bf16-true": 0.3, "fp32": -0.001}


def recipe_of(task):
    return task.workload.optimizer.kind if task.workload.optimizer.kind == "muon" else task.workload.precision.name


def of_recipe(task, **changes):
    """A measurement of a recipe's speed, memory and losses."""
    name = recipe_of(task)
    speed = speed_of(task.config) * FACTOR.get(name, 0.9)
    losses = [loss + LAG.get(name, 0.0) for loss in LOSSES] if task.plan.loss_steps else [5.0] * 10
    return on_quiet_machine(measurement(speed)).model_copy(update={"losses": tuple(losses), **changes})


def create(client, **changes):
    answer = client.post("/v1/studies", json=CONSIDERING | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()["study_id"]


def is_recipe_run(client, lease):
    runs = client.get(f"/v1/studies/{lease.study_id}/trials").json()["trials"][lease.trial_number]["runs"]
    return next(run for run in runs if run["run_id"] == lease.run_id)["purpose"] == "recipe"


def first_recipe_run(client, worker):
    """Everything before it; its lease."""
    while (lease := worker.lease()) is not None:
        if isinstance(lease.task, TrialTask) and is_recipe_run(client, lease):
            return lease
        worker.do(lease)
    raise AssertionError("the study ended without a recipe run")
