"""The calls that are about no single study: workers, what is needed of them, fingerprints, costs, schedules, retunes."""

from urllib.parse import quote

from pydantic import TypeAdapter

from shardtune.api_schemas.machines.demand import Demand
from shardtune.api_schemas.machines.fingerprints import FingerprintDetail, FingerprintRecord
from shardtune.api_schemas.retuning.costs import CostReport
from shardtune.api_schemas.retuning.retunes import Retune
from shardtune.api_schemas.retuning.schedules import Schedule, ScheduleSpec
from shardtune.api_schemas.trials.leases import Worker
from shardtune.service.client.transport import Calls

_WORKERS = TypeAdapter(list[Worker])
_SCHEDULES = TypeAdapter(list[Schedule])
_RETUNES = TypeAdapter(list[Retune])


class FleetClient:
    """What `shardtune.client.ServiceClient` asks about workers, schedules and money."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def workers(self) -> list[Worker]:
        """Workers ever registered, by name."""
        return _WORKERS.validate_python(self._calls.pages("/v1/workers", "workers"))

    def drain(self, worker_id: str, draining: bool = True) -> Worker:
        """Give a worker no more work, or give it work again."""
        action = "drain" if draining else "resume"
        return Worker.model_validate(self._calls.send("POST", f"/v1/workers/{worker_id}:{action}"))

    def free_worker(self, worker_id: str) -> Worker:
        """Let another key of the project register under a worker's name."""
        return Worker.model_validate(self._calls.send("POST", f"/v1/workers/{worker_id}:free"))

    def costs(self, months: int | None = None, project: str | None = None) -> CostReport:
        """GPU-seconds by project, month and cause."""
        wanted = {"months": months, "project": project}
        params = {name: value for name, value in wanted.items() if value is not None}
        return CostReport.model_validate(self._calls.send("GET", "/v1/costs", params=params))

    def demand(self) -> Demand:
        """What open studies need of workers."""
        return Demand.model_validate(self._calls.send("GET", "/v1/demand"))

    def forget_worker(self, worker_id: str) -> None:
        """List a worker that is gone nowhere any more."""
        self._calls.send("DELETE", f"/v1/workers/{quote(worker_id, safe='')}")

    def fingerprints(self, worker: str | None = None, current_only: bool = False) -> list[FingerprintRecord]:
        """Hardware and software that workers have reported, newest first."""
        wanted = {"current": str(current_only).lower()} | ({"worker": worker} if worker else {})
        return [
            FingerprintRecord.model_validate(row)
            for row in self._calls.pages("/v1/fingerprints", "fingerprints", wanted)
        ]

    def fingerprint(self, fingerprint_id: str) -> FingerprintDetail:
        """One fingerprint with what depends on it."""
        return FingerprintDetail.model_validate(
            self._calls.send("GET", f"/v1/fingerprints/{quote(fingerprint_id, safe='')}")
        )

    def schedules(self) -> list[Schedule]:
        """Schedules, newest first."""
        return _SCHEDULES.validate_python(self._calls.pages("/v1/schedules", "schedules"))

    def schedule(self, schedule_id: str, action: str | None = None) -> Schedule:
        """One schedule and its last ticks; after `pause`, `resume` or `run`, where given."""
        return Schedule.model_validate(self._one("schedules", schedule_id, action))

    def create_schedule(self, spec: ScheduleSpec, project: str | None = None) -> Schedule:
        """Have recommendations measured again."""
        params = {"project": project} if project else None
        return Schedule.model_validate(self._calls.send("POST", "/v1/schedules", spec.model_dump(mode="json"), params))

    def delete_schedule(self, schedule_id: str) -> None:
        """Forget a schedule."""
        self._calls.send("DELETE", f"/v1/schedules/{quote(schedule_id, safe='')}")

    def retunes(self, **wanted: str | None) -> list[Retune]:
        """Retunes, newest first; `target_key`, `schedule_id`, `state` choose."""
        chosen = {name: value for name, value in wanted.items() if value is not None}
        return _RETUNES.validate_python(self._calls.pages("/v1/retunes", "retunes", chosen))

    def retune(self, retune_id: str, action: str | None = None) -> Retune:
        """One retune; after `cancel`, where given."""
        return Retune.model_validate(self._one("retunes", retune_id, action))

    def _one(self, kind: str, name: str, action: str | None) -> object:
        path = f"/v1/{kind}/{quote(name, safe='')}"
        return self._calls.send("POST", f"{path}:{action}") if action else self._calls.send("GET", path)
