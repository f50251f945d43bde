"""The driver's own request for a reset or a reboot decides about a GPU and about the run in which it appears."""

import threading
import time
from pathlib import Path

import pytest

from shardtune.api_schemas.machines.conditions import Conditions
from shardtune.api_schemas.trials.failures import Failure
from shardtune.workers.clock import now_s
from shardtune.workers.launch import Launch
from shardtune.workers.machine.conditions import HostObserver, with_conditions
from shardtune.workers.machine.device_health import (
    DeviceObservation,
    GpuObservation,
    broken_devices,
    find_fault,
    summarize_devices,
)
from shardtune.workers.machine.device_watch import DeviceWatch
from tests.support.workers.worker_fakes import make_task

CTXSW_TIMEOUT = 109


def look_at(at_s: float = 0, **device: object) -> GpuObservation:
    return GpuObservation(at_s=at_s, devices=[DeviceObservation.model_validate({"uuid": "GPU-1", **device})])


def conditions_of(*looks: dict[str, object]) -> Conditions:
    return Conditions(devices=summarize_devices([look_at(second, **look) for second, look in enumerate(looks)], ()))


def test_a_request_for_a_reset_that_appears_during_the_run_excuses_its_failure() -> None:
    seen = conditions_of({"recovery_action": 0}, {"recovery_action": 0}, {"recovery_action": 1})
    crash = Failure(kind="crash", message="unspecified launch failure")
    result = with_conditions(make_task(), crash, seen, None)
    assert isinstance(result, Failure) and result.kind == "device" and not result.is_infeasible
    assert "recovery action 1" in result.message and "nvidia-smi --gpu-reset" in result.message
    assert not seen.devices[0].is_quiet


@pytest.mark.parametrize(
    ("actions", "asked"),
    [
        ((0, 0, 0), 0),
        ((None, None), None),
        ((1, 1), 0),
        ((0, 3, 1), 1),
        ((None, 2, None), 2),
        ((0, 2, 0), 2),
        ((3, 0), 0),
    ],
)
def test_only_a_request_that_is_new_in_the_run_is_the_runs(actions: tuple[int | None, ...], asked: int | None) -> None:
    seen = conditions_of(*({"recovery_action": action} for action in actions))
    assert seen.devices[0].recovery_action == asked
    assert (find_fault(seen.devices) is not None) == bool(asked)


@pytest.mark.parametrize(("action", "is_bad"), [(0, False), (1, True), (None, True)])
def test_a_context_switch_that_timed_out_is_judged_by_the_driver_where_it_tells(
    action: int | None, is_bad: bool
) -> None:
    ill = {"xids": [CTXSW_TIMEOUT], "recovery_action": action}
    assert bool(broken_devices(look_at(**ill))) == is_bad
    before = {"recovery_action": None if action is None else 0}
    assert (find_fault(conditions_of(before, ill).devices) is not None) == is_bad


def test_the_notice_that_the_action_changed_says_nothing_without_the_action() -> None:
    ill = {"xids": [154], "recovery_action": 0}
    assert broken_devices(look_at(**ill)) == []
    assert find_fault(conditions_of({"recovery_action": 0}, ill).devices) is None


def test_a_drivers_error_that_is_told_after_the_rank_has_died_of_it_belongs_to_the_run(tmp_path: Path) -> None:
    watch = DeviceWatch(["GPU-1"], tmp_path)
    observer = HostObserver(watch, "n1")
    watch._observations.append(look_at(now_s() - 1))
    observer.begin()

    def observe_later() -> None:
        time.sleep(0.3)
        watch._observations.append(look_at(now_s(), xids=[79]))

    teller = threading.Thread(target=observe_later)
    teller.start()
    seen = observer.conditions(tmp_path, Launch.of(1))
    teller.join()
    fault = find_fault(seen.devices)
    assert fault is not None and "Xid 79" in fault.message


def test_an_observation_may_arrive_while_earlier_ones_are_read(tmp_path: Path) -> None:
    """Reading then ended the agent (`deque mutated during iteration`), and with it the run."""
    watch = DeviceWatch(["GPU-1"], tmp_path)

    class LookBeforeAnother:
        @property
        def at_s(self) -> float:
            watch._observations.append(look_at(9))
            return 1.0

    watch._observations.append(LookBeforeAnother())  # type: ignore[arg-type]
    assert len(watch.between(0, 2)) == 1
