"""An example of the adapter, tuned on 2 CPU ranks by the real service and worker; and a script that will not die.

All examples with SHARDTUNE_TEST_LONG=1, and one of them through a whole study.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import PRECISIONS, Workload
from shardtune.api_schemas.trials.leases import TrialTask
from tests.support.long_run import IS_LONG
from tests.support.processes.stack import Stack, until

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "adapter"
QUICK = {
    "parity_steps": 2,
    "max_warmup_steps": 1,
    "window_steps": 1,
    "min_windows": 2,
    "max_windows": 2,
    "min_measure_s": 0,
}
SHARDED = {"fsdp2_loop": Fsdp2Config(dp_shard=2), "deepspeed_loop": ZeroConfig(stage=1)}
NAMES = ("trainer_lora", *(("plain_loop", "accelerate_loop", "trainer", *SHARDED) if IS_LONG else ()))
"""tests/rank/test_adapter.py trains with the others at less cost, and tests/endtoend/test_wheel.py has a plain loop."""
COMPARED = "plain_loop" if IS_LONG else None
"""Script whose winner is compared in pairs: the final comparison does not depend on the script."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    opened = Stack(tmp_path_factory.mktemp("own-scripts"))
    opened.start_service(measure=json.dumps(QUICK))
    scripts = [f"{name.replace('_', '-')}={EXAMPLES / name}.py" for name in NAMES]
    opened.start_worker(options=[part for script in scripts for part in ("--allow-script", script)])
    yield opened
    opened.close()


def small(name: str, trials: int) -> dict[str, Any]:
    """The example's own study with one trial, the default; or two, and what a pair of them takes to be compared."""
    spec: dict[str, Any] = json.loads((EXAMPLES / f"{name}.json").read_text())
    knobs = {"micro_batch": [1, 8], "activation_checkpointing": "none"}
    return spec | {
        "budget": {"max_trials": trials, "max_pairs": 7, "repeat_disturbed": 0, "prune": False},
        "space": {"knobs": knobs},
    }


@pytest.mark.parametrize(("name", "trials"), [(name, 2 if name == COMPARED else 1) for name in NAMES])
def test_an_example_is_tuned(stack: Stack, name: str, trials: int) -> None:
    study_id = stack.create(small(name, trials))
    until(lambda: stack.study(study_id)["state"] != "running", 380, "the study ends")
    study = stack.study(study_id)
    assert (study["state"], study["trials"]) == ("complete", {"complete": trials}), (
        study["reason"],
        stack.trials(study_id),
    )
    result = study["result"]
    assert result["best"]["tokens_per_s_per_gpu"] > 0 and result["best"]["peak_allocated_gib"] > 0
    assert (result["final_comparison"] is not None) == (trials == 2), "the challenger came into the final comparison"
    assert (study["model_summary"]["trainable_parameters"] < study["model_summary"]["parameters"]) == (
        name == "trainer_lora"
    )


@pytest.mark.skipif(not IS_LONG, reason="starts ranks by torchrun: SHARDTUNE_TEST_LONG=1")
@pytest.mark.parametrize("name", NAMES)
def test_an_example_trains_unchanged_with_the_best_that_is_known_and_with_its_own_default(
    name: str, tmp_path: Path
) -> None:
    config = TrialConfig(strategy=SHARDED.get(name, DdpConfig(bucket_cap_mb=3)), micro_batch=4)
    workload = Workload(sequence_length=64, global_batch=16, precision=PRECISIONS["fp32"])
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    model = ModelSpec(name="own", script="own", config={"rank": 4})
    task = TrialTask(model=model, workload=workload, cluster=cluster, config=config)
    train = _train(name, tmp_path)
    assert "best/config.json cannot be read" in train and "the script's own default" in train
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "config.json").write_text(task.model_dump_json())
    assert f"shardtune: training with {config.describe()} (best/config.json)" in _train(name, tmp_path)


def _train(name: str, folder: Path) -> str:
    """Two steps on two ranks, as somebody in that folder would start them; what was said."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(EXAMPLES / f"{name}.py")]
    environment = {
        **os.environ,
        "STEPS": "2",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stderr


def test_a_script_may_load_for_longer_than_it_may_stand_still_and_what_it_started_ends_with_it(tmp_path: Path) -> None:
    """Once it has reported, only its reports are progress, however much it computes. Its end reaches a process in a
    session of its own, and a rank that heeds no signal.

    `test_launchers.py` ends a script that sleeps from its beginning.
    """
    ended = end_of_trial(
        tmp_path,
        "loading",
        "import signal, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "import torch\n"
        "from shardtune import adapter\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"sleeper = [sys.executable, '-S', '-c', 'import time; time.sleep(600)', {str(tmp_path)!r}]\n"
        "subprocess.Popen(sleeper, start_new_session=True)\n"
        # A seventh of a core, ten times what counts as work: tests beside this one need the others.
        "def compute():\n"
        "    sum(range(1_000_000))\n"
        "    time.sleep(0.1)\n"
        "trial = adapter.trial()\n"
        "loaded_s = time.monotonic() + 20\n"
        "while time.monotonic() < loaded_s: compute()\n"
        "trial.prepare(torch.nn.Linear(2, 1))\n"
        "trial.report(1.0)\n"
        "Path(__file__).with_name('reported').touch()\n"
        "while True: compute()\n",
        no_progress_s=15,
    )
    assert (tmp_path / "reported").exists(), ended
    assert ended["kind"] == "no_progress"
    time.sleep(0.2)
    remaining = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])]
    assert remaining == []


def end_of_trial(tmp_path: Path, name: str, body: str, no_progress_s: float) -> dict[str, Any]:
    """Failure with which a trial of this script ended."""
    script = tmp_path / f"{name}.py"
    script.write_text(body)
    cluster = {"device": "cpu", "gpus_per_node": 1, "memory_gib": 1, "host_memory_gib": 4}
    workload = {"sequence_length": 8, "global_batch": 2, "precision": "fp32"}
    task = {"model": {"script": name}, "workload": workload, "cluster": cluster}
    (tmp_path / "task.json").write_text(json.dumps(task | {"config": {"strategy": {"kind": "ddp"}}}))
    command = [sys.executable, "-m", "shardtune.workers", "run-trial", str(tmp_path / "task.json"), "--json", "--cold"]
    command += ["--work-dir", str(tmp_path / "work"), "--no-progress-s", str(no_progress_s)]
    command += ["--allow-script", f"{name}={script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    failure: dict[str, Any] = json.loads(done.stdout)
    return failure
