"""Client calls about workers, demand, fingerprints, costs, schedules and retunes, which belong to no single study."""

from urllib.parse import quote

from pydantic import TypeAdapter

from shardtune.api_schemas.machines.demand import Demand
from shardtune.api_schemas.machines.fingerprints import FingerprintDetail, FingerprintRecord
from shardtune.api_schemas.machines.workers import Worker
from shardtune.api_schemas.retuning.costs import CostReport
from shardtune.api_schemas.retuning.retunes import Retune
from shardtune.api_schemas.retuning.schedules import Schedule, ScheduleSpec
from shardtune.service.client.computed_answers import ComputedClient

_WORKERS = TypeAdapter(list[Worker])
_SCHEDULES = TypeAdapter(list[Schedule])
_RETUNES = TypeAdapter(list[Retune])


class FleetClient(ComputedClient):
    """Part of `shardtune.client.ServiceClient` with the calls about workers, schedules and costs."""

    def workers(self) -> list[Worker]:
        """List all registered workers, by name."""
        return self._calls.read_rows(_WORKERS, self._calls.pages("/v1/workers", "workers"))

    def drain(self, worker_id: str, draining: bool = True) -> Worker:
        """Drain a worker (it gets no new runs), or resume it."""
        action = "drain" if draining else "resume"
        return self._calls.read(Worker, self._calls.send("POST", f"/v1/workers/{worker_id}:{action}"))

    def free_worker(self, worker_id: str) -> Worker:
        """Release a worker's name, so that another key of the project may register under it."""
        return self._calls.read(Worker, self._calls.send("POST", f"/v1/workers/{worker_id}:free"))

    def costs(self, months: int | None = None, project: str | None = None) -> CostReport:
        """Return the GPU-seconds used and their price, by project, month and cause."""
        filters = {"months": months, "project": project}
        params = {name: value for name, value in filters.items() if value is not None}
        return self._calls.read(CostReport, self._calls.send("GET", "/v1/costs", params=params))

    def demand(self, cluster: str | None = None) -> Demand:
        """Return the demand for workers: the hardware that open studies need. With a cluster such as `8xh100`, only
        studies that workers with this cluster can run are counted."""
        parameters = {} if cluster is None else {"cluster": cluster}
        return self._calls.read(Demand, self._calls.send("GET", "/v1/demand", params=parameters))

    def forget_worker(self, worker_id: str) -> None:
        """Remove a worker that no longer runs, so that no list shows it."""
        self._calls.send("DELETE", f"/v1/workers/{quote(worker_id, safe='')}")

    def fingerprints(self, worker: str | None = None, current_only: bool = False) -> list[FingerprintRecord]:
        """List the hardware and software that workers reported, newest first."""
        filters = {"current": str(current_only).lower()} | ({"worker": worker} if worker else {})
        return [
            self._calls.read(FingerprintRecord, row)
            for row in self._calls.pages("/v1/fingerprints", "fingerprints", filters)
        ]

    def fingerprint(self, fingerprint_id: str) -> FingerprintDetail:
        """Return a fingerprint (hardware and software versions) and the recommendations measured under it."""
        return self._calls.read(
            FingerprintDetail, self._calls.send("GET", f"/v1/fingerprints/{quote(fingerprint_id, safe='')}")
        )

    def schedules(self) -> list[Schedule]:
        """List schedules, newest first."""
        return self._calls.read_rows(_SCHEDULES, self._calls.pages("/v1/schedules", "schedules"))

    def schedule(self, schedule_id: str, action: str | None = None) -> Schedule:
        """Return a schedule and its last ticks (scheduled times). `action`, if given, is carried out first: `pause`,
        `resume` or `run`."""
        return self._calls.read(Schedule, self._read_or_act("schedules", schedule_id, action))

    def create_schedule(self, spec: ScheduleSpec, project: str | None = None) -> Schedule:
        """Create a schedule on which recommendations are measured again."""
        params = {"project": project} if project else None
        return self._calls.read(
            Schedule, self._calls.send("POST", "/v1/schedules", spec.model_dump(mode="json"), params)
        )

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule."""
        self._calls.send("DELETE", f"/v1/schedules/{quote(schedule_id, safe='')}")

    def retunes(self, **filters: str | None) -> list[Retune]:
        """List retunes (repeated measurements of recommendations), newest first, filtered by `target_key`,
        `schedule_id` and `state`.
        """
        chosen = {name: value for name, value in filters.items() if value is not None}
        return self._calls.read_rows(_RETUNES, self._calls.pages("/v1/retunes", "retunes", chosen))

    def retune(self, retune_id: str, action: str | None = None) -> Retune:
        """Return a retune (repeated measurement of a recommendation), after the action `cancel` if it is given."""
        return self._calls.read(Retune, self._read_or_act("retunes", retune_id, action))

    def _read_or_act(self, kind: str, name: str, action: str | None) -> object:
        # The id comes from a command line: a `/` or `?` in it must not address another resource.
        path = f"/v1/{kind}/{quote(name, safe='')}"
        return self._calls.send("POST", f"{path}:{action}") if action else self._calls.send("GET", path)
