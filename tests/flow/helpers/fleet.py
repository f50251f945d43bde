"""Workers of one fingerprint, each with a speed of its own, and their canaries."""

from sqlalchemy import select

from shardtune.api_schemas.strategies import TrialConfig
from shardtune.db.tables.canaries import CanaryRow
from shardtune.service.canaries import judge, send
from tests.flow.helpers.retuning_lab import Lab
from tests.support.service.scenarios import best
from tests.support.service.simulated_worker import FINGERPRINT, SimulatedWorker, measurement, speed_of

DAY_S = 86_400


class Fleet(Lab):
    """Workers of one fingerprint, each with a speed of its own; the first has measured what is served.

    For tests marked `answered(worker="sim-0")`.
    """

    def __init__(self, client, clock, count=2):
        super().__init__(client)
        self.clock, self.slow = clock, dict.fromkeys((f"sim-{i}" for i in range(count)), 1.0)
        self.join(FINGERPRINT)

    def join(self, fingerprint):
        self.workers = [
            SimulatedWorker(
                self.client, name=name, fingerprint=fingerprint, behave=lambda _, task, name=name: self.run(name, task)
            ).register()
            for name in self.slow
        ]

    def run(self, name, task):
        return measurement(self.slow[name] * self.speed(task.config))

    def far_ahead(self):
        """Make the recommendation so much faster than all others that a challenge runs it once."""
        served = TrialConfig.model_validate(best(self.client)["best"]["config"])
        self.speed = lambda config: speed_of(config) * (1.0 if config == served else 0.5)

    def everybody_is(self, speed):
        self.slow = dict.fromkeys(self.slow, speed)

    def day(self):
        """One period, and what there is of canaries."""
        self.clock.turn(DAY_S)
        return self.look()

    def look(self):
        """Canaries are sent, run and judged until nothing follows."""
        for worker in self.workers:
            worker.register()
        for _ in range(4):
            self.watch()
            self.work()
        self.watch()
        with self.context.db.read() as session:
            rows = session.scalars(
                select(CanaryRow).order_by(CanaryRow.created_at, CanaryRow.tick, CanaryRow.role.desc())
            )
            return [(row.role, row.worker.name, row.verdict) for row in rows]

    def work(self):
        return sum(worker.work() for worker in self.workers)

    def kept(self, cause="manual"):
        """A retune that keeps what is served, some time later."""
        self.clock.turn(60)
        for worker in self.workers:
            worker.register()
        retune_id = self.ask(cause)
        for _ in range(2):
            self.step()
            self.work()
        self.step()
        body = self.client.get(f"/v1/retunes/{retune_id}").json()
        assert body["outcome"] == "kept", body["reason"]
        return body

    def watch(self):
        for project_id, key in self.cases():
            send.begin_if_due(self.context, project_id, key, DAY_S)
        judge.judge_and_begin(self.context)

    def cases(self):
        return [("default", best(self.client)["target_key"])]

    def runs(self):
        studies = self.client.get("/v1/studies").json()["studies"]
        return [
            study["gpu_seconds"] / 6.0 for study in studies if (study["system_study"] or {}).get("kind") == "canary"
        ]

    def conditions(self):
        return {row["name"]: row["condition"] for row in self.client.get("/v1/workers").json()["workers"]}
