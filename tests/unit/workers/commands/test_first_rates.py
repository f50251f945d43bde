"""A worker's first start on a machine whose rates nobody knows measures them, once."""

from pathlib import Path

import pytest

from shardtune.api_schemas.machines.hardware import CollectiveTime, HardwareReport, Inventory, MeasuredHardware
from shardtune.workers.commands.agent import with_rates
from shardtune.workers.commands.host_pool import HostPool
from shardtune.workers.config.settings import WorkerSettings
from shardtune.workers.interrupt import Interrupt
from shardtune.workers.launchers.base import LaunchFailed
from shardtune.workers.machine import hardware_speed
from tests.support.service.simulated_worker import FINGERPRINT
from tests.support.values.tuner_inputs import cpu, gpus

RATES = MeasuredHardware(
    bf16_flops=1e11,
    fp32_flops=5e10,
    copy_bytes_per_s=1e10,
    launch_s=1e-5,
    collectives=(CollectiveTime(operation="all_reduce", bytes=1 << 20, seconds=1e-3),),
)


def machine(peak_flops=None, measured=None, device="cpu"):
    cluster = cpu() if device == "cpu" else gpus()
    changed = FINGERPRINT.model_copy(update={"device": device, "intra_node_gb_per_s": None})
    return Inventory(cluster=cluster, fingerprint=changed, peak_flops=peak_flops, measured=measured)


class Measured:
    """Keeps rates as the ranks' program does, and counts how often it was asked to."""

    def __init__(self):
        self.times = 0

    def __call__(self, launcher, offered, work_dir, give_up):
        self.times += 1
        report = HardwareReport(cluster=offered.cluster, fingerprint=offered.fingerprint, measured=RATES)
        hardware_speed.store(work_dir, offered, report)
        return report


def offered_by(work_dir: Path, inventory: Inventory, measure, **settings: object) -> Inventory:
    reserved = HostPool(launcher=None, offered=inventory, detect_again=lambda: None)  # type: ignore[arg-type]
    return with_rates(WorkerSettings(work_dir=work_dir, **settings), reserved, Interrupt(), measure)  # type: ignore[arg-type]


def test_unknown_rates_are_measured_before_the_worker_registers(tmp_path):
    measure = Measured()
    actual_offered_by = offered_by(tmp_path, machine(), measure, measure_rates=True)
    assert actual_offered_by.measured == RATES and measure.times == 1
    # The band of the bandwidth is part of what studies are kept under, from the first of them.
    assert actual_offered_by.fingerprint.intra_node_gb_per_s is not None


@pytest.mark.parametrize(
    "inventory", [machine(measured=RATES), machine(peak_flops=1e15, device="cuda")], ids=["measured", "catalogue"]
)
def test_known_rates_are_not_measured_again(tmp_path, inventory):
    measure = Measured()
    assert offered_by(tmp_path, inventory, measure, measure_rates=True) == inventory and measure.times == 0


def test_the_owner_may_leave_it_out(tmp_path):
    measure = Measured()
    assert offered_by(tmp_path, machine(), measure, measure_rates=False).measured is None and measure.times == 0


def test_a_machine_that_cannot_be_measured_works_all_the_same(tmp_path):
    def fails(launcher, offered, work_dir, give_up):
        raise LaunchFailed("rank 0 failed")

    assert offered_by(tmp_path, machine(), fails, measure_rates=True) == machine()


def test_a_full_disk_leaves_the_rates_unknown(tmp_path):
    def measure(*_):
        raise OSError(28, "No space left on device")

    assert offered_by(tmp_path, machine(), measure, measure_rates=True) == machine()
