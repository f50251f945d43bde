"""GPUs whose compute mode lets CUDA fail are rejected before a trial starts."""

from pathlib import Path

import pytest

from shardtune.workers.machine.inventory import DetectionFailed, find_gpus
from tests.support.nvml.fake_driver import H100, FakeDriver

DEFAULT, EXCLUSIVE_THREAD, PROHIBITED, EXCLUSIVE_PROCESS = range(4)


def mode(number: int) -> dict[str, object]:
    return H100 | {"compute_mode": number}


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Two H100 in the default mode, for the children of this process."""
    fake_driver = FakeDriver(tmp_path, mode(DEFAULT), mode(DEFAULT))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in fake_driver.environment.items():
        monkeypatch.setenv(name, value)
    return fake_driver


def test_a_gpu_that_lets_no_process_use_it_is_named_with_the_remedy(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_gpus().uuids == ["GPU-0", "GPU-1"]
    driver.says(mode(DEFAULT), mode(PROHIBITED))
    with pytest.raises(DetectionFailed, match=r"GPU-1 is in compute mode Prohibited.*`nvidia-smi -c 0`.*CPU ranks"):
        find_gpus()
    rejected = driver.python("-m", "shardtune.workers", "detect")
    assert rejected.returncode == 1 and "nvidia-smi -c 0" in rejected.stderr
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert find_gpus().uuids == ["GPU-0"]


@pytest.mark.parametrize("number", [EXCLUSIVE_THREAD, EXCLUSIVE_PROCESS])
def test_gpus_in_exclusive_mode_are_rejected_unless_one_trains_alone(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    driver.says(mode(number), mode(number))
    with pytest.raises(DetectionFailed, match=r"GPU-0, GPU-1 is in compute mode Exclusive_Process.*`nvidia-smi -c 0`"):
        find_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert find_gpus().uuids == ["GPU-1"]
