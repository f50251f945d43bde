"""One machine whose software and speeds a test changes, and retunes of what it has tuned."""

import json
from datetime import timedelta

from sqlalchemy import select

from shardtune.api_schemas.notifications.events import EVENT_TYPES
from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.db.queries import retunes as rows
from shardtune.db.tables.webhooks import DeliveryRow, WebhookRow
from shardtune.service.retuning import challenge_steps, queue
from tests.support.service.scenarios import best, change
from tests.support.service.simulated_worker import FINGERPRINT, SPEC, SimulatedWorker, failure, measurement, speed_of

CHANGED = FINGERPRINT.model_copy(update={"kernel": "6.2"})


class Lab:
    """One machine whose software and speeds a test changes."""

    def __init__(self, client):
        self.client, self.context = client, client.app.state.context
        self.fingerprint = FINGERPRINT
        self.speed = speed_of
        self.broken = set()
        hook = {
            "url": "http://127.0.0.1:9/hook",
            "events": tuple(kind for kind in EVENT_TYPES if kind.startswith("best.")),
            "is_enabled": True,
            "secret_version": 1,
        }
        with self.context.db.write() as session:
            session.add(WebhookRow(id="hook", created_at=self.context.now(), **hook))

    def work(self):
        """A new life of the worker runs whatever there is; returns the number of runs."""
        worker = SimulatedWorker(self.client, behave=self._behave, fingerprint=self.fingerprint).register()
        return worker.work()

    def tune(self, **changes):
        SimulatedWorker(self.client, fingerprint=self.fingerprint).register()
        study = self.client.post("/v1/studies", json=SPEC | changes).json()
        self.work()
        return study["study_id"]

    def ask(self, cause="fingerprint"):
        with self.context.db.write() as session:
            now = self.context.now()
            row = queue.request_retune(
                session,
                project_id="default",
                target_key=best(self.client)["target_key"],
                cause=cause,
                changes=[change("kernel")],
                not_before=now,
                now=now,
            )
            return row.id

    def step(self):
        """Run one pass of the service's loop."""
        queue.start_due(self.context, challenge_steps.start_challenge)
        with self.context.db.read() as session:
            running = rows.running(session)
        for row in running:
            challenge_steps.advance_retune(self.context, row)

    def retune(self, cause="fingerprint"):
        """Run a retune from the request to its end; the retune, and its runs study by study."""
        SimulatedWorker(self.client, fingerprint=self.fingerprint).register()
        retune_id, runs = self.ask(cause), []
        for _ in range(3):
            self.step()
            runs.append(self.work())
        self.step()
        return self.client.get(f"/v1/retunes/{retune_id}").json(), runs

    def row(self, retune_id):
        with self.context.db.read() as session:
            return rows.get(session, retune_id)

    def events(self, study_id):
        """Webhook events about recommendations."""
        with self.context.db.read() as session:
            sent = session.scalars(select(DeliveryRow).order_by(DeliveryRow.created_at, DeliveryRow.id)).all()
            return [row.type for row in sent if json.loads(row.body)["data"]["study_id"] == study_id]

    def study(self, study_id):
        return self.client.get(f"/v1/studies/{study_id}").json()

    def _behave(self, _lease, task):
        if task.config.backend in self.broken:
            return failure(FailureKind.OOM)
        return measurement(self.speed(task.config))


def ask(context, key, cause="fingerprint", wait_s=0.0, **more):
    with context.db.write() as session:
        due = context.now() + timedelta(seconds=wait_s)
        request = queue.request_retune(
            session, project_id="default", target_key=key, cause=cause, not_before=due, now=context.now(), **more
        )
        return request.id
