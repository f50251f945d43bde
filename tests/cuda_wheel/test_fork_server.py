"""The CUDA build of torch, NVIDIA's library played and no GPU: the fork server imports everything and can still be forked (`make test-cuda-wheel`)."""

import importlib.util
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml.fake_driver import H100, FakeDriver

_TORCH = importlib.util.find_spec("torch")
assert _TORCH is not None and _TORCH.origin is not None
CUDA = runpy.run_path(str(Path(_TORCH.origin).parent / "version.py"))["cuda"]
pytestmark = pytest.mark.skipif(CUDA is None, reason="this torch is no CUDA build: make test-cuda-wheel has one")

HOST = """
# First: it says what must be in the environment before torch and numpy are imported.
import shardtune.workers.rank
import json, os, sys
from pathlib import Path
import torch
from shardtune.workers.rank import inventory
from shardtune.workers.rank.device import CudaDevice
from shardtune.workers.rank.process import cpu_adam
from shardtune.workers.rank.fork_server import early_imports

def tell(**what):
    print(json.dumps(what), flush=True)

def state():
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "initialised": torch.cuda.is_initialized(),
        "bad_fork": torch.cuda._is_in_bad_fork(),
        "gpus": torch.cuda.device_count(),
        "driver": "libcuda.so" in Path("/proc/self/maps").read_text(),
    }

for name in (*early_imports.LATE_IMPORTS, "transformers.models.llama.modeling_llama"):
    early_imports.import_if_there(name)
tell(**state())
if os.fork() == 0:
    # In the probe's child, as the fork server does before it is ready.
    cpu_adam.is_built()
    CudaDevice(0).configure_allocator("expandable_segments:True")
    libraries = inventory.describe()
    ones = torch.ones(512, 512)
    tell(libraries=libraries, product=float((ones @ ones)[0, 0]), allocator=torch._C._accelerator_getAllocatorSettings(), **state())
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""

RANKS = {"DS_ACCELERATOR": "cuda", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Environment that `rank_devices` makes, with every GPU visible."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("driver"), *[H100] * 8)


@pytest.fixture(scope="module")
def probe_driver(driver: FakeDriver) -> list[dict[str, Any]]:
    """Reports of the fork server and of a process forked from it."""
    done = driver.python("-c", HOST, **RANKS)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_host_has_one_thread_and_has_initialised_nothing(probe_driver: list[dict[str, Any]]) -> None:
    host = probe_driver[0]
    assert (host["threads"], host["initialised"], host["bad_fork"], host["driver"]) == (1, False, False, False)
    assert host["gpus"] == 8


def test_a_fork_computes_and_may_still_begin_with_cuda(probe_driver: list[dict[str, Any]]) -> None:
    fork = probe_driver[1]
    assert fork["libraries"]["cuda"] == CUDA and fork["libraries"]["nccl"]
    assert (fork["product"], fork["initialised"], fork["bad_fork"], fork["gpus"]) == (512.0, False, False, 8)


def test_the_allocator_of_a_fork_takes_settings_before_cuda_begins(probe_driver: list[dict[str, Any]]) -> None:
    assert "expandable_segments:True" in probe_driver[1]["allocator"]


def test_the_machine_is_offered_with_the_versions_of_its_build(driver: FakeDriver) -> None:
    done = driver.python("-m", "shardtune.workers", "detect", "--json")
    assert done.returncode == 0, done.stderr
    offered = json.loads(done.stdout)["fingerprint"]
    assert (offered["device"], offered["gpu_count"], offered["cuda"]) == ("cuda", 8, CUDA)
