"""One service that answers as told, one lease, and one agent with ranks that act as told."""

from shardtune.api_schemas.protocol import PROTOCOL_VERSION
from shardtune.api_schemas.trials.leases import Lease, Report
from shardtune.workers.agent.attempt import Workplace
from shardtune.workers.agent.client import WorkerClient
from shardtune.workers.agent.loop import Agent
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.machine.inventory import Gpus, Libraries, inventory
from tests.support.workers.worker_fakes import FakeService

REGISTERED = {
    "protocol_version": PROTOCOL_VERSION,
    "worker_id": "w1",
    "session": "session-1",
    "lease_s": 20,
    "heartbeat_s": 0.1,
}
CONTINUE = (200, {"action": "continue", "lease_s": 20})


class World:
    """One service with one lease to give, one agent; ends when `until(world)` is true after a request."""

    def __init__(self, tmp_path, launcher, task, until, look=None, idle_minutes=None, operator_build=None, **answers):
        self.until = until
        self.answers = {
            "workers": (200, REGISTERED),
            "heartbeat": CONTINUE,
            "report": (200, {"applied": True}),
            "unreadable": (200, {"applied": True}),
            "readyz": (200, {}),
        } | answers
        lease_change, first_lease = self.answers.pop("lease_change", {}), self.answers.pop("first_lease", None)
        lease = Lease(
            run_id="r1",
            attempt=3,
            study_id="s1",
            trial_number=0,
            task=task,
            lease_s=self.answers.pop("lease_s", 20),
            heartbeat_s=0.1,
            deadline_s=30,
            no_progress_s=30,
            quiet_wait=self.answers.pop("quiet_wait", None),
        )
        self.leases = [(200, lease.model_dump(mode="json") | lease_change)]
        if first_lease is not None:
            self.leases.append(first_lease)
        self.interrupt = Interrupt()
        self.service = FakeService(self.answer)
        settings = WorkerSettings(
            service=self.service.url,
            work_dir=tmp_path,
            name="box",
            min_free_gib=0,
            look_again_s=0.001,
            exit_when_idle_minutes=idle_minutes,
        )
        offered = inventory(Gpus(driver=None, devices=()), Libraries(), 2, 1.0)
        place = Workplace(tmp_path, launcher, offered.fingerprint, 2, None, 0, operator_build=operator_build)
        again = (lambda: look(offered.fingerprint)) if look else (lambda: None)
        self.agent = Agent(settings, WorkerClient(settings.service), place, offered, self.interrupt, again)

    def answer(self, path, body):
        kind = path.rsplit("/", 1)[1]
        if kind == "leases":
            answer = self.leases.pop() if self.leases else (204, None)
        else:
            answers = self.answers[kind]
            answer = answers.pop(0) if isinstance(answers, list) else answers
        if self.until(self):
            self.interrupt.signal = 15
        return answer

    def reports(self):
        return [Report.model_validate(body) for body in self.service.bodies("/report")]
