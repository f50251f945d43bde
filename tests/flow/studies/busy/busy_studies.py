"""Studies that are measured beside other programs, and what their service answers."""

import random

from shardtune.api_schemas.machines.conditions import Conditions, ProgramLoad
from tests.support.service.scenarios import THREE_BACKENDS, create
from tests.support.service.simulated_worker import SPEC, SimulatedWorker, measurement, speed_of

BASELINE = {"strategy": {"kind": "ddp"}, "micro_batch": 1}
OWN_BASELINE = {**THREE_BACKENDS, "baseline": BASELINE}
CLANG = (ProgramLoad(name="clang", cores=0.9), ProgramLoad(name="chrome", cores=0.4))


def beside(load):
    """Runs beside other programs that take `load()` cores."""

    def behave(lease, task):
        foreign = load()
        run = measurement(speed_of(task.config) * (2 - foreign) / 2)
        conditions = Conditions(foreign_cpu_cores=foreign, foreign_programs=CLANG if foreign > 0.3 else ())
        return run.model_copy(update={"conditions": conditions})

    return behave


def bursts(seed=1):
    draw = random.Random(seed)
    return beside(lambda: draw.choice((0.5, 1.0, 1.5)))


FEW = SPEC["budget"] | {"max_trials": 4, "max_pairs": 12}
"""Half of the pairs and of the trials, where the verdict alone counts."""


def studied(client, behave, **changes):
    worker = SimulatedWorker(client, behave=behave).register()
    study_id = create(client, **{**OWN_BASELINE, "budget": FEW, **changes})
    worker.work(400)
    study = client.get(f"/v1/studies/{study_id}").json()
    assert study["state"] == "complete", study["reason"]
    return worker, study


def newest_decision(client, target_key):
    return client.get("/v1/best:history", params={"target_key": target_key}).json()["decisions"][0]


def compared(client, target_key):
    """Speed of the recommendation's validation runs, as the comparison of configurations shows it."""
    (shown,) = client.get("/v1/comparisons", params={"pick": target_key}).json()["configs"]
    return shown["validation"]
