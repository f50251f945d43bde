"""The script that was tuned, outside of any trial: who gives it its configuration, and what it says."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest
import torch

from shardtune.api_schemas.machines.hardware import Cluster
from shardtune.api_schemas.strategies import DdpConfig, Fsdp2Config, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.workers import adapter
from shardtune.workers.adapter import production

WORKLOAD = Workload(sequence_length=64, global_batch=16)
DEFAULT = TrialConfig(strategy=DdpConfig())
DDP_ONLY = ("ddp",)


def written(folder: Path, config: TrialConfig) -> Path:
    cluster = Cluster(device="cpu", gpus_per_node=2, memory_gib=4, host_memory_gib=8)
    model = ModelSpec(name="own", script="own", config={"rank": 4})
    path = folder / "config.json"
    path.write_text(TrialTask(model=model, workload=WORKLOAD, cluster=cluster, config=config).model_dump_json())
    return path


class Answering(NamedTuple):
    url: str
    keys: list[str | None]
    """Keys that were shown with each request."""


@contextmanager
def answering(status: int, body: object) -> Iterator[Answering]:
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield Answering(f"http://127.0.0.1:{server.server_address[1]}", keys)
        server.shutdown()


def test_best_config_json_is_taken_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, TrialConfig(strategy=DdpConfig(bucket_cap_mb=5), micro_batch=4))
    choice = production.configuration(DDP_ONLY, DEFAULT, WORKLOAD, path, {"WORLD_SIZE": "2", "RANK": "0"})
    assert (choice.micro_batch, choice.accumulation, choice.options) == (4, 2, {"rank": 4})
    assert "training with DDP" in (stderr := capsys.readouterr().err) and str(path) in stderr
    choice.prepare(torch.nn.Linear(1, 1))
    for step in range(3):
        choice.report(1.0, step=step)
    production.configuration(DDP_ONLY, DEFAULT, WORKLOAD, path, {"WORLD_SIZE": "2", "RANK": "1"})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("config", "world", "why"),
    [
        (TrialConfig(strategy=ZeroConfig(stage=2)), "2", "is a configuration of zero, and the script takes ddp"),
        (TrialConfig(strategy=DdpConfig(), micro_batch=16), "2", "is not for 2 ranks: global_batch (16)"),
        (TrialConfig(strategy=DdpConfig(), mlp_slices=4), "2", "has mlp_slices (4), which computes MLPs in slices"),
        (
            TrialConfig(strategy=DdpConfig(), compile=True, activation_memory_budget=0.5),
            "2",
            "has activation_memory_budget (0.5), which repeats operators of blocks",
        ),
        (None, "2", "cannot be read (No such file or directory)"),
    ],
)
def test_what_this_job_cannot_run_is_passed_over_for_the_default_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: TrialConfig | None, world: str, why: str
) -> None:
    path = tmp_path / "config.json" if config is None else written(tmp_path, config)
    choice = production.configuration(DDP_ONLY, DEFAULT, WORKLOAD, path, {"WORLD_SIZE": world})
    assert choice.config == DEFAULT and choice.source == "the script's own default"
    assert why in capsys.readouterr().err


def test_a_model_that_is_split_over_ranks_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, TrialConfig(strategy=Fsdp2Config(dp_shard=1, tensor_parallel=2)))
    choice = production.configuration(("ddp", "fsdp2"), DEFAULT, WORKLOAD, path, {"WORLD_SIZE": "2"})
    assert choice.config == DEFAULT and "splits the model over 2 ranks" in capsys.readouterr().err


def test_a_service_without_an_answer_does_not_stop_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, DEFAULT)
    with answering(404, {"detail": "nothing is known of it"}) as service:
        requested = {production.SERVICE: service.url, production.TARGET_KEY: "k" * 32}
        assert production.configuration(DDP_ONLY, None, None, path, requested).source == str(path)
    assert "has no answer" in (stderr := capsys.readouterr().err) and "nothing is known of it" in stderr
    gone = {production.SERVICE: "http://127.0.0.1:1", production.TARGET_KEY: "k" * 32}
    assert production.configuration(DDP_ONLY, None, None, path, gone).source == str(path)
    assert "did not answer" in capsys.readouterr().err


def test_a_proxy_of_the_environment_sees_no_key_of_a_production_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(404, {}) as proxy, answering(404, {"detail": "nothing known"}) as service:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        values = {"SHARDTUNE_SERVICE_URL": service.url, "SHARDTUNE_TARGET_KEY": "x", "SHARDTUNE_API_KEY": "secret"}
        production.configuration(DDP_ONLY, DEFAULT, WORKLOAD, tmp_path / "none.json", values)
        assert (proxy.keys, service.keys) == ([], ["Bearer secret"])


def test_without_any_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(adapter.AdapterError, match="default=… and workload=…"):
        production.configuration(DDP_ONLY, None, None, tmp_path / "none.json", {})
