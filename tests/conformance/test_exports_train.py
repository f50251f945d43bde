"""The exported files do train, on 2 CPU ranks: the script under torchrun, DeepSpeed's JSON, Accelerate's DDP.

One script is started by its launch.sh and torchrun; the others are the very files in forks that have torch imported.
"""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtune.api_schemas.strategies import DdpConfig, Fsdp1Config, Fsdp2Config, Offload, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.optimizers import AdamW, AdamW8bit, AdamWBf16
from shardtune.tuner.export import files
from tests.support.long_run import IS_LONG, wide
from tests.support.processes import preloaded_forks
from tests.support.ranks.torch_features import OWN_REDUCE_SCATTER
from tests.support.values.synthetic_studies import (
    CPU,
    contender_of,
    study_of,
    with_adapter,
    with_float8,
    with_muon,
    with_optimizer,
)

pytestmark = pytest.mark.ranks

INTERLEAVED: dict[str, Any] = {"pipeline_schedule": "interleaved_1f1b", "pipeline_virtual_stages": 2}
IN_A_V: dict[str, Any] = {"pipeline_schedule": "zbv_zero_bubble", "pipeline_virtual_stages": 2}
IN_A_V |= {"reshard_after_forward": False, "grad_sync": "last"}
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
_trained: dict[tuple[object, ...], list[tuple[float, float]]] = {}
"""Losses and norms of each set of files that trained, by the files and the number of ranks."""
_STEP = re.compile(r"step (\d+): loss ([\d.]+), gradient norm ([\d.]+)")
ACCELERATE_SCRIPT = """
import os
import sys
import torch
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(4, 4)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for micro in range(accelerator.gradient_accumulation_steps):
    with accelerator.accumulate(model):
        inputs = torch.ones(2, 4, device=accelerator.device) * (accelerator.process_index + 1)
        accelerator.backward(model(inputs).float().square().mean())
        optimizer.step()
        optimizer.zero_grad()
weight = accelerator.unwrap_model(model).weight
spread = (accelerator.gather(weight.detach().sum()[None]).std()).item()
facts = accelerator.distributed_type, accelerator.num_processes, accelerator.mixed_precision, type(model).__name__, spread
sys.stdout.write(" ".join(str(fact) for fact in facts) + "\\n")  # in one piece: both ranks write to one pipe
sys.stdout.flush()
accelerator.wait_for_everyone()
os._exit(0)  # gloo's threads still alive while the interpreter winds down can abort the process
"""


def export(folder: Path, config: TrialConfig, **study: Any) -> Path:
    for name, text in files(study_of(**study), contender_of(config)).items():
        (folder / name).write_text(text)
    return folder


def launch(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(folder / "launch.sh"), *arguments]
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=480, check=False, env=environment)


def losses_and_norms(output: str) -> list[tuple[float, float]]:
    """Losses of the two steps."""
    steps = [(float(loss), float(norm)) for _, loss, norm in _STEP.findall(output)]
    assert len(steps) == 2, output
    return steps


def train(folder: Path, ranks: int = 2) -> list[tuple[float, float]]:
    """Loss and gradient norm of two steps; files that are the same to the byte train once."""
    key = ranks, *sorted((path.name, path.read_text()) for path in folder.iterdir())
    if key not in _trained:
        program = folder / "train_snippet.py", "--steps", "2"
        environment = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        printed = preloaded_forks.ranks(
            preloaded_forks.script, *program, logs=folder, count=ranks, environment=environment
        )
        _trained[key] = losses_and_norms(printed[0])
    return _trained[key]


def train_launched(folder: Path) -> list[tuple[float, float]]:
    """Losses of a script started as a user starts it."""
    done = launch(folder, "--steps", "2")
    assert done.returncode == 0, done.stderr[-4000:]
    return losses_and_norms(done.stdout)


def test_ddp_and_zero_2_scripts_train_the_same(tmp_path: Path) -> None:
    """Equal seeds, equal made-up tokens: what differs is only the strategy, with DeepSpeed's JSON read by DeepSpeed."""
    results = []
    for strategy, start in ((DdpConfig(gradient_as_bucket_view=True), train_launched), (ZeroConfig(stage=2), train)):
        folder = tmp_path / strategy.kind
        folder.mkdir()
        results.append(start(export(folder, TrialConfig(strategy=strategy, micro_batch=2))))
    assert results[0] == [pytest.approx(step, rel=2e-4) for step in results[1]]


def test_scripts_in_bfloat16_throughout_train_the_same(tmp_path: Path) -> None:
    """Weights of one initialisation in bfloat16, whose states DeepSpeed keeps by its switches."""
    results = []
    for strategy in (DdpConfig(), ZeroConfig(stage=2)):
        folder = tmp_path / strategy.kind
        folder.mkdir()
        config = TrialConfig(strategy=strategy, micro_batch=2)
        results.append(train(export(folder, config, precision="bf16-true")))
    assert results[0] == [pytest.approx(step, rel=1e-2) for step in results[1]]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((Fsdp1Config(dp_shard=2),), id="fsdp1"),
        wide((DdpConfig(), Fsdp2Config(dp_shard=2), ZeroConfig(stage=2), ZeroConfig(stage=3)), id="others"),
    ],
)
def test_scripts_in_float16_train(tmp_path: Path, others: tuple[Any, ...]) -> None:
    """Their first steps may overflow, which updates nothing; once the scale fits, norms are finite and the loss falls."""
    for strategy in others:
        folder = tmp_path / f"{strategy.kind}-{getattr(strategy, 'stage', 0)}"
        folder.mkdir()
        config = TrialConfig(strategy=strategy, micro_batch=2)
        program = export(folder, config, precision="fp16-mixed") / "train_snippet.py", "--steps", "8"
        environment = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        printed = preloaded_forks.ranks(preloaded_forks.script, *program, logs=folder, environment=environment)[0]
        steps = [(float(loss), float(norm)) for loss, norm in re.findall(r"loss (\S+), gradient norm (\S+),", printed)]
        assert len(steps) == 8 and all(math.isfinite(loss) for loss, _ in steps), printed
        assert math.isfinite(steps[-1][1]) and sum(math.isfinite(norm) for _, norm in steps) >= 2, printed


def test_scripts_with_muon_train(tmp_path: Path) -> None:
    """DDP's script begins with the weights of AdamW's; FSDP2 (in the long run) draws others on each shard, so its losses
    must be finite."""
    results, plain = [], study_of()
    # Muon's iterations in emulated bfloat16 take a minute of a core with llama-tiny's matrices.
    small = plain.spec.model.model_copy(update={"config": plain.spec.model.config | SMALL})
    plain = plain.model_copy(update={"spec": plain.spec.model_copy(update={"model": small})})
    fsdp2 = (("fsdp2", with_muon(plain), Fsdp2Config(dp_shard=2)),) if IS_LONG else ()
    for name, study, strategy in (
        ("adamw", plain, DdpConfig()),
        ("ddp", with_muon(plain), DdpConfig()),
        *fsdp2,
    ):
        folder = tmp_path / name
        folder.mkdir()
        exported = files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))
        for file, text in exported.items():
            (folder / file).write_text(text)
        results.append(train(folder))
    adamw, ddp, *drawn = results
    assert ddp[0] == pytest.approx(adamw[0], rel=2e-4) and ddp[-1] != pytest.approx(adamw[-1], rel=2e-4)
    assert all(math.isfinite(value) for steps in drawn for step in steps for value in step)


def test_scripts_with_8_bit_adamw_train_the_same(tmp_path: Path) -> None:
    results, plain = [], study_of()
    low = with_optimizer(plain, AdamW8bit(lr=1e-3))
    for name, study, strategy in (
        ("adamw", with_optimizer(plain, AdamW(lr=1e-3)), DdpConfig()),
        ("ddp", low, DdpConfig()),
        ("zero", low, ZeroConfig(stage=2)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        exported = files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))
        for file, text in exported.items():
            (folder / file).write_text(text)
        results.append(train(folder))
    adamw, ddp, zero = results
    assert ddp[0] == pytest.approx(adamw[0], rel=1e-5)
    assert zero == [pytest.approx(step, rel=2e-3) for step in ddp]


def test_scripts_with_stochastic_rounding_train_the_same(tmp_path: Path) -> None:
    """Each backend draws random numbers of its own. FSDP1 and FSDP2 begin with other weights, so that their losses must be
    finite."""
    results, study = {}, with_optimizer(study_of(precision="bf16-true"), AdamWBf16(lr=1e-3))
    others = {"fsdp1": Fsdp1Config(dp_shard=2), "fsdp2": Fsdp2Config(dp_shard=2)} if IS_LONG else {}
    for name, strategy in ({"ddp": DdpConfig(), "zero": ZeroConfig(stage=2)} | others).items():
        folder = tmp_path / name
        folder.mkdir()
        exported = files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))
        for file, text in exported.items():
            (folder / file).write_text(text)
        results[name] = train(folder)
    assert results["zero"] == [pytest.approx(step, rel=1e-2) for step in results["ddp"]]
    assert all(math.isfinite(value) for name in others for step in results[name] for value in step)


def test_scripts_with_4_bit_weights_train(tmp_path: Path) -> None:
    """DDP's and ZeRO's begin with the same bits; FSDP2 (in the long run) draws its blocks first, so its losses must be
    finite."""
    adapter = {"rank": 4, "quantization": "nf4", "double_quantization": True}
    study, results = with_adapter(study_of(), adapter), []
    for strategy in (DdpConfig(), ZeroConfig(stage=2), *([Fsdp2Config(dp_shard=2)] if IS_LONG else [])):
        folder = tmp_path / strategy.kind
        folder.mkdir()
        for file, text in files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2))).items():
            (folder / file).write_text(text)
        results.append(train(folder))
    ddp, zero, *drawn = results
    assert ddp == [pytest.approx(step, rel=2e-4) for step in zero]
    assert all(math.isfinite(value) for steps in drawn for step in steps for value in step)


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        pytest.param("llama-tiny", Fsdp2Config(dp_shard=2), id="fsdp2"),
        wide("gpt2-tiny", Fsdp2Config(dp_shard=2), id="fsdp2, Conv1D"),
        wide("llama-tiny", ZeroConfig(stage=3), id="zero-3"),
        wide("gpt2-tiny", DdpConfig(), id="ddp, Conv1D"),
    ],
)
def test_a_script_with_dora_begins_as_with_lora(tmp_path: Path, model: str, strategy: Any) -> None:
    """Both begin with the model's own outputs, if the magnitudes are the lengths of the rows that were drawn."""
    first = []
    for dora in (False, True):
        folder = tmp_path / str(dora)
        folder.mkdir()
        study = with_adapter(study_of(model, "fp32"), {"rank": 4, "dora": dora})
        for file, text in files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2))).items():
            (folder / file).write_text(text)
        first.append(train(folder)[0][0])
    assert first[1] == pytest.approx(first[0], rel=1e-5)


def test_scripts_in_float8_train_the_same(tmp_path: Path) -> None:
    """The first losses of float8 differ from those without it by its rounding, and agree between backends."""
    results = []
    for name, recipe, strategy in (
        ("plain", None, DdpConfig()),
        ("ddp", "rowwise", DdpConfig()),
        ("zero", "rowwise", ZeroConfig(stage=2)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        study = with_float8(study_of(), recipe)
        exported = files(study, contender_of(TrialConfig(strategy=strategy, micro_batch=2)))
        for file, text in exported.items():
            (folder / file).write_text(text)
        results.append(train(folder))
    plain, ddp, zero = results
    assert ddp[0] != pytest.approx(plain[0], rel=1e-6) and ddp[0] == pytest.approx(plain[0], rel=2e-2)
    assert zero[0] == pytest.approx(ddp[0], rel=1e-4) and zero[1] == pytest.approx(ddp[1], rel=3e-2)


def test_a_script_with_a_loss_in_chunks_trains_as_one_of_all_logits(tmp_path: Path) -> None:
    """Chunks of 40 tokens, the last shorter; in the long run, and in tests/rank/test_chunked_loss.py, also on two ranks
    that each have a part of the vocabulary."""
    split = Fsdp2Config(dp_shard=1, tensor_parallel=2)
    for name, strategy in (("ddp", DdpConfig()), *([("tensor", split)] if IS_LONG else [])):
        results = []
        for loss in ({}, {"loss": "chunked", "loss_chunk": 40}):
            folder = tmp_path / f"{name}-{len(loss)}"
            folder.mkdir()
            config = TrialConfig.model_validate({"strategy": strategy, "micro_batch": 2, **loss})
            results.append(train(export(folder, config)))
        assert results[0] == [pytest.approx(step, rel=2e-4) for step in results[1]], name


@pytest.mark.parametrize("strategy", [DdpConfig(), wide(ZeroConfig(stage=3))], ids=["ddp", "zero-3"])
def test_a_script_with_inputs_in_host_memory_trains_as_one_with_inputs_on_the_device(
    tmp_path: Path, strategy: DdpConfig | ZeroConfig
) -> None:
    results = []
    for offloads in (False, True):
        folder = tmp_path / str(offloads)
        folder.mkdir()
        config = TrialConfig(
            strategy=strategy, micro_batch=2, activation_checkpointing="full", activation_offload=offloads
        )
        results.append(train(export(folder, config)))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [(DdpConfig(), "full"), wide(Fsdp2Config(dp_shard=2), "selective"), wide(ZeroConfig(stage=3), "full")],
    ids=["ddp", "fsdp2", "zero-3"],
)
def test_a_script_with_mlps_in_slices_trains_as_one_with_whole_mlps(
    tmp_path: Path, strategy: DdpConfig | Fsdp2Config | ZeroConfig, mode: str
) -> None:
    results = []
    for slices in (1, 4):
        folder = tmp_path / str(slices)
        folder.mkdir()
        config = TrialConfig.model_validate(
            {"strategy": strategy, "micro_batch": 2, "activation_checkpointing": mode, "mlp_slices": slices}
        )
        results.append(train(export(folder, config)))
    assert results[0] == [pytest.approx(step, rel=2e-4) for step in results[1]]


def test_ranks_that_share_samples_train_as_one_does(tmp_path: Path) -> None:
    """Two launches on equal made-up tokens: a group of two ranks, and a single rank. Each prints the loss of what it
    trains."""
    norms = []
    for ranks, strategy in ((1, DdpConfig()), (2, ZeroConfig(stage=2))):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        config = TrialConfig(strategy=strategy, micro_batch=2, context_parallel=ranks)
        export(folder, config, cluster=CPU.model_copy(update={"gpus_per_node": ranks}))
        norms.append([norm for _, norm in train(folder, ranks)])
    assert norms[0] == [pytest.approx(norm, rel=2e-3) for norm in norms[1]]


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (
            "gpt2-tiny",
            TrialConfig(
                strategy=Fsdp2Config(
                    dp_shard=2,
                    blocks_per_unit=2,
                    forward_prefetch=1,
                    backward_prefetch=2,
                    grad_sync="last",
                    **OWN_REDUCE_SCATTER,
                ),
                micro_batch=2,
                activation_checkpointing="selective",
            ),
        ),
        (
            "mixtral-tiny",
            TrialConfig(
                strategy=ZeroConfig(stage=3, offload_optimizer=Offload(pin_memory=False)),
                micro_batch=2,
                activation_checkpointing="full",
            ),
        ),
        ("llama-tiny", TrialConfig(strategy=DdpConfig(), micro_batch=2, activation_checkpointing="full")),
        (
            "llama-tiny",
            TrialConfig(
                strategy=Fsdp2Config(dp_shard=1, tensor_parallel=2), micro_batch=4, activation_checkpointing="full"
            ),
        ),
        wide(
            "gpt2-tiny",
            TrialConfig(
                strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2), micro_batch=2, activation_checkpointing="full"
            ),
        ),
        (
            "llama-tiny",
            TrialConfig(strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2, **INTERLEAVED), micro_batch=2),
        ),
        wide("gpt2-tiny", TrialConfig(strategy=Fsdp2Config(dp_shard=1, pipeline_parallel=2, **IN_A_V), micro_batch=2)),
        (
            "mixtral-tiny",
            TrialConfig(
                strategy=Fsdp2Config(dp_shard=2, expert_parallel=2, forward_prefetch=1, blocks_per_unit=2),
                micro_batch=2,
                activation_checkpointing="selective",
            ),
        ),
        (
            "gpt2-tiny",
            TrialConfig(
                strategy=Fsdp1Config(dp_shard=2, sharding_strategy="SHARD_GRAD_OP", backward_prefetch=None),
                micro_batch=2,
                activation_checkpointing="selective",
            ),
        ),
    ],
    ids=[
        "fsdp2",
        "zero-3",
        "ddp",
        "fsdp2, tensor",
        "fsdp2, pipeline",
        "fsdp2, interleaved",
        "fsdp2, in a V",
        "fsdp2, experts",
        "fsdp1",
    ],
)
def test_scripts_train_in_mixed_precision(tmp_path: Path, model: str, config: TrialConfig) -> None:
    """bf16-mixed, because that is what the scripts write casts for; two steps."""
    vocabulary = study_of(model).spec.model.config["vocab_size"]
    assert isinstance(vocabulary, int)
    loss, norm = train(export(tmp_path, config, model=model, precision="bf16-mixed"))[0]
    # Random weights and uniform tokens: the loss is that of guessing.
    assert loss == pytest.approx(math.log(vocabulary), rel=0.02)
    assert norm > 0


def test_accelerate_trains_ddp_with_the_exported_file(tmp_path: Path) -> None:
    """bf16-mixed, because the file must name it; a layer of four by four."""
    export(tmp_path, TrialConfig(strategy=DdpConfig(), micro_batch=2), precision="bf16-mixed")
    (tmp_path / "train.py").write_text(ACCELERATE_SCRIPT)
    done = launch(tmp_path, "accelerate", str(tmp_path / "train.py"))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("DistributedType.MULTI_CPU 2 bf16 DistributedDataParallel 0.0") == 2


@pytest.mark.parametrize("strategy", [Fsdp2Config(dp_shard=2), ZeroConfig(stage=2)], ids=["fsdp2", "zero"])
def test_accelerate_is_rejected_where_it_would_ignore_the_strategy(
    tmp_path: Path, strategy: Fsdp2Config | ZeroConfig
) -> None:
    export(tmp_path, TrialConfig(strategy=strategy))
    rejected = launch(tmp_path, "accelerate", "train.py")
    assert rejected.returncode == 2
    assert "on CPU ranks" in rejected.stderr
