"""Readers of foreign input without a service: each ends with a value, or with the error that it documents."""

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from hypothesis.strategies import SearchStrategy
from pydantic import ValidationError

from shardtune.api_schemas.times import check_zone
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.diagnosis import Diagnosis
from shardtune.service.cli import baseline_file, study_file
from shardtune.service.cli.errors import InputError
from shardtune.service.http.errors import ApiError
from shardtune.service.pages.views.diagnosis.page import diagnosis_report
from shardtune.service.schedules.cron import check_expression, describe
from shardtune.service.studies import validation
from shardtune.traces import kineto
from shardtune.traces.diagnose import diagnosis as diagnosis_of
from shardtune.traces.json_pieces import UnreadableTrace
from shardtune.tuner import baseline
from shardtune.tuner.diagnosis import explain
from shardtune.workers.gang import messages
from shardtune.workers.launch import Launch
from tests.fuzz.inputs import cron_texts, json_like, yaml_like
from tests.support.service.simulated_worker import CLUSTER, FINGERPRINT, diagnosis
from tests.support.values.synthetic_traces import on_cpu, on_gpu

_EXAMPLES = Path(__file__).parents[2] / "examples"
_NOW = datetime(2026, 3, 1, tzinfo=UTC)
_WORKLOAD = Workload(sequence_length=64, global_batch=16)
_MODEL = ModelSpec.model_validate("llama-tiny")
_LONGEST_ERROR = 20_000


@dataclass(frozen=True)
class Target:
    """A reader and inputs for it."""

    name: str
    inputs: SearchStrategy[bytes]
    read: Callable[[bytes], None]
    """Reads an input; any exception is a finding."""


def read_trace(content: bytes) -> None:
    """Diagnose one rank's trace."""
    try:
        diagnosis_of([kineto.read(io.BytesIO(content), "rank_0.json")]).model_dump_json()
    except UnreadableTrace as error:
        _check_text(str(error))


def read_baseline(content: bytes) -> None:
    """Resolve a baseline's keys, as `POST /v1/studies` does."""
    values = _object_of(content)
    if values is None:
        return
    try:
        baseline.resolve(values, _WORKLOAD, CLUSTER, _MODEL)
    except ValueError as error:
        _check_text(str(error))


def read_baseline_file(content: bytes) -> None:
    """Read a baseline's file, as YAML and as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".yaml", ".json"):
            path = Path(folder) / f"baseline{suffix}"
            path.write_bytes(content)
            try:
                baseline_file.read(path.name, path.parent)
            except InputError as error:
                _check_text(str(error))


def read_study(content: bytes) -> None:
    """Read a study file, and check it without a worker."""
    values = _object_of(content)
    # Names of models lead to folders of this machine and to the hub.
    if values is None or (isinstance(values.get("model"), str | dict) and "hub" in values["model"]):
        return
    try:
        request = study_file.validate_study(values, Path("/nonexistent"))
        validation.check_without_worker(request, CLUSTER)
    except InputError as error:
        for line in error.lines:
            _check_text(line)
    except ApiError as error:
        _check_text(error.detail)


def read_diagnosis(content: bytes) -> None:
    """Read a diagnosis that a worker sends, and show it."""
    try:
        valid = Diagnosis.model_validate_json(content)
    except ValidationError:
        return
    diagnosis_report(explain.explain(valid, None, None))


def read_cron(content: bytes) -> None:
    """Check a schedule's cron expression in a time zone."""
    try:
        expression, _, zone = content.decode().rpartition("\n")
        check_zone("timezone", zone)
        check_expression(expression, zone, _NOW, 300.0)
    except ValueError as error:
        _check_text(str(error))
        return
    describe(expression)


def read_node_line(content: bytes) -> None:
    """Read a line of the pipe between agent and node agent, in both directions."""
    for read in (messages.from_node, messages.from_agent):
        try:
            messages.to_line(read(content))
        except ValueError:
            continue


def _object_of(content: bytes) -> dict | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _check_text(text: str) -> None:
    assert text and len(text) < _LONGEST_ERROR, text[:500]


_TRAINER = yaml.safe_load((_EXAMPLES / "training_arguments.yaml").read_text())
_ACCELERATE = yaml.safe_load((_EXAMPLES / "accelerate_fsdp1.yaml").read_text()) | {"micro_batch": 4}
_DEEPSPEED = json.loads((_EXAMPLES / "ds_config.json").read_text())
_BASELINE_FILES = [path.read_bytes() for path in sorted(_EXAMPLES.glob("*.yaml"))]
_OWN = {"strategy": {"kind": "fsdp2", "dp_shard": 2}, "micro_batch": 4, "activation_checkpointing": "full"}
_STUDY = json.loads((_EXAMPLES / "llama-tiny.json").read_text())
_WITH_BASELINE = _STUDY | {
    "model": {"name": "own", "config": _MODEL.trained_config},
    "baseline": _DEEPSPEED,
    "space": {"backends": ["ddp", "zero", "fsdp2"], "knobs": {"micro_batch": [1, 2, 4]}},
    "seed": 1,
}
_NODE_LINES = (
    messages.NodeHeartbeat(beat=1, moved=0, progress=None),
    messages.OrderDone(order=1, port=29500, fingerprint=FINGERPRINT),
    messages.RankEnded(order=1, rank=0, code=-9, log_tail="x"),
    messages.LaunchEnded(order=1),
    messages.LaunchOrder(order=1, launch=Launch.of(2)),
    messages.NodeHeartbeatAnswer(beat=1, lease_s=20.0),
    messages.Begin(settings={"ranks": 2}, lease_s=20.0),
)

READERS = (
    Target("trace", json_like(on_cpu(), on_gpu()), read_trace),
    Target("baseline", json_like(_TRAINER, _ACCELERATE, _DEEPSPEED, _OWN), read_baseline),
    Target("baseline_file", yaml_like(*_BASELINE_FILES), read_baseline_file),
    Target("study", json_like(_STUDY, _WITH_BASELINE), read_study),
    Target("diagnosis", json_like(diagnosis().model_dump(mode="json")), read_diagnosis),
    Target("cron", cron_texts(), read_cron),
    Target("node", json_like(*(line.model_dump(mode="json") for line in _NODE_LINES)), read_node_line),
)
