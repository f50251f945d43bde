"""Studies in MLflow and Weights & Biases, written by the callbacks and read with each program's own code: `make
test-consumers` runs this module in an environment that has both."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import shardtune as st
from tests.support.values.tracked_study import TRIALS, study

needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="no mlflow: `make test-consumers` runs this")
needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="no wandb: `make test-consumers` runs this")


def log(callback: object) -> None:
    """Give a callback what `Study.wait` gives it."""
    ended = study()
    for trial in TRIALS:
        callback.trial_ended(ended, trial)  # type: ignore[attr-defined]
    callback.study_ended(ended)  # type: ignore[attr-defined]


def log_records(content: bytes) -> Iterator[bytes]:
    """Records of W&B's file: LevelDB's log format, of blocks of 32 KiB, after a header of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        _, length, kind = struct.unpack_from("<IHB", content, at)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


@needs_mlflow
def test_mlflow_has_a_run_for_each_trial_once_and_the_answer(tmp_path: Path) -> None:
    import mlflow

    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for _ in range(2):
        log(st.MlflowCallback("tuning", tracking_uri=address))
    client = mlflow.MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("tuning").experiment_id
    runs = {run.data.tags["shardtune.trial"]: run for run in client.search_runs([experiment])}
    assert len(client.search_runs([experiment])) == len(TRIALS) + 1 and set(runs) == {"none", "0", "1", "2"}
    first, failed, whole = runs["0"], runs["1"], runs["none"]
    assert first.data.params["micro_batch"] == "1" and first.data.metrics["measured_tokens_per_s_per_gpu"] == 1000.0
    assert first.data.tags["mlflow.parentRunId"] == whole.info.run_id and first.info.status == "FINISHED"
    assert failed.info.status == "FAILED" and "out of memory" in failed.data.tags["shardtune.failure"]
    assert "measured_tokens_per_s_per_gpu" not in failed.data.metrics
    assert whole.data.tags["shardtune.state"] == "cancelled" and whole.info.status == "FAILED"


@needs_wandb
def test_wandb_writes_a_run_for_each_trial_offline(tmp_path: Path) -> None:
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    log(st.WandbCallback("tuning", mode="offline", folder=str(tmp_path)))
    # W&B's own process closes a finished run's file without an answer; a program's exit waits for it as this does.
    wandb.teardown()
    summaries: dict[str, dict[str, object]] = {}
    for file in tmp_path.glob("wandb/offline-run-*/*.wandb"):
        for data in log_records(file.read_bytes()):
            for item in Record.FromString(data).summary.update:
                key = item.key or ".".join(item.nested_key)
                summaries.setdefault(file.stem.removeprefix("run-"), {})[key] = json.loads(item.value_json)
    assert set(summaries) == {"study-1", "study-1-0", "study-1-1", "study-1-2"}
    assert summaries["study-1-0"]["measured_tokens_per_s_per_gpu"] == 1000.0
    assert "out of memory" in str(summaries["study-1-1"]["failure"]) and summaries["study-1"]["state"] == "cancelled"


@pytest.mark.parametrize(("name", "package"), [("MlflowCallback", "mlflow-skinny"), ("WandbCallback", "wandb")])
def test_without_its_package_a_callback_names_it(name: str, package: str) -> None:
    code = (
        "import sys; sys.modules['mlflow'] = sys.modules['wandb'] = None\nimport shardtune as st\n"
        f"try:\n    st.{name}()\nexcept st.MissingPackage as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert f"{name} needs the package {package}, which is not installed; run `pip install {package}`" in ran.stdout
