"""MLPs in slices train what MLPs over all tokens train, on every backend, and faults in them are caught.

More combinations, and four ranks, with SHARDTUNE_TEST_LONG=1.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardtune.api_schemas.training.models import ModelSpec
from shardtune.api_schemas.training.workload import Workload
from shardtune.api_schemas.trials.leases import TrialTask
from shardtune.api_schemas.trials.rank_reports import RankReport
from shardtune.workers.blocks import checkpointing, mlp_modules, mlp_slices
from shardtune.workers.rank.training import model_summary
from tests.rank.helpers.fork_server_process import HostProcess
from tests.rank.helpers.loss_ranks import SLICE_FAULTS, TILED_MLP, assert_same, compared
from tests.support.long_run import IS_LONG as LONG
from tests.support.long_run import telling
from tests.support.ranks.tiny_tasks import BACKENDS, GPT2, LLAMA, MIXTRAL, tiny_task

GATHERING = BACKENDS["zero-3"] | {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
"""ZeRO-3 that gathers the weights of each slice anew."""
SHARED: dict[str, Any] = {
    "micro_batch": 2,
    "parity_steps": 3,
    "max_grad_norm": 0.3,
    "mlp_slices": 4,
    "sequence_length": 35,
    # With Adam's usual eps, rounding moves a weight whose gradient is about 1e-8 by a hundredth of a step.
    "optimizer": {"lr": 1.25e-3, "eps": 1e-6},
}
"""Two micro batches a rank and step, of 70 tokens in slices of 18, 18, 17 and 17; the norm is clipped."""
BOUND = {"loss": 1e-6, "norm": 1e-5, "weight": 1e-5}
BF16 = {"loss": 5e-4, "norm": 3e-2}
SHORT_LLAMA = LLAMA | {"num_hidden_layers": 2}
GEMMA2 = SHORT_LLAMA | {"model_type": "gemma2", "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
"""Model with a norm behind the MLP, so that a checkpoint around the block repeats the MLP, too."""
LORA = {"kind": "lora", "rank": 4, "alpha": 8}
FULL = {"activation_checkpointing": "full"}
CASES: dict[str, TrialTask] = {
    **{name: tiny_task(strategy, model=SHORT_LLAMA, **SHARED) for name, strategy in BACKENDS.items()},
    **{
        f"{name}, full": tiny_task(strategy, model=SHORT_LLAMA, **FULL, **SHARED) for name, strategy in BACKENDS.items()
    },
    **{
        f"{name}, selective": tiny_task(
            BACKENDS[name], model=SHORT_LLAMA, activation_checkpointing="selective", **SHARED
        )
        for name in ("ddp", "fsdp1", "fsdp2", "zero-2")
    },
    "zero-3, gathering": tiny_task(GATHERING, model=SHORT_LLAMA, **SHARED),
    "zero-3, gathering, full": tiny_task(GATHERING, model=SHORT_LLAMA, **FULL, **SHARED),
    "ddp, every 2nd block": tiny_task(BACKENDS["ddp"], checkpoint_every=2, **FULL, **SHARED),
    "ddp, more slices than tokens": tiny_task(
        BACKENDS["ddp"], model=SHORT_LLAMA, **(SHARED | {"mlp_slices": 128, "micro_batch": 1})
    ),
    "fsdp2, norm behind the mlp": tiny_task(BACKENDS["fsdp2"], model=GEMMA2, **FULL, **SHARED),
    "zero-3, norm behind the mlp": tiny_task(BACKENDS["zero-3"], model=GEMMA2, **FULL, **SHARED),
    "fsdp2, norm behind the mlp, selective": tiny_task(
        BACKENDS["fsdp2"], model=GEMMA2, activation_checkpointing="selective", **SHARED
    ),
    "fsdp1, gpt2": tiny_task(BACKENDS["fsdp1"], model=GPT2, **SHARED),
    "fsdp2, lora": tiny_task(BACKENDS["fsdp2"], model=SHORT_LLAMA, adapter=LORA, **SHARED),
    "zero-3, lora, full": tiny_task(BACKENDS["zero-3"], model=SHORT_LLAMA, adapter=LORA, **FULL, **SHARED),
    "ddp, last layers": tiny_task(BACKENDS["ddp"], adapter={"kind": "last_layers", "layers": 2}, **SHARED),
    "fsdp2, inputs in host memory": tiny_task(
        BACKENDS["fsdp2"], model=SHORT_LLAMA, activation_offload=True, **FULL, **SHARED
    ),
    "zero-2, loss in chunks": tiny_task(BACKENDS["zero-2"], model=SHORT_LLAMA, loss="chunked", loss_chunk=24, **SHARED),
    "context parallel": tiny_task(
        BACKENDS["fsdp2"], model=SHORT_LLAMA, context_parallel=2, **(SHARED | {"sequence_length": 36, "micro_batch": 1})
    ),
    "ddp, every reduction": tiny_task(
        {"kind": "ddp", "grad_sync": "every", "gradient_as_bucket_view": True}, model=SHORT_LLAMA, **SHARED
    ),
}
UNEVEN = tiny_task(BACKENDS["zero-2"], model=SHORT_LLAMA, **(SHARED | {"mlp_slices": 40, "micro_batch": 4}))
"""140 tokens in 40 slices, of which `torch.chunk` makes 35 of four tokens."""
CASES["zero-2, 40 slices"] = UNEVEN
OFTEN = (
    *("ddp", "zero-1", "fsdp2, full", "fsdp1, full", "zero-2", "zero-3", "zero-3, gathering, full", "fsdp2, selective"),
    *("ddp, more slices than tokens", "fsdp2, norm behind the mlp", "fsdp1, gpt2", "fsdp2, lora"),
    *("fsdp2, inputs in host memory", "context parallel", "zero-2, 40 slices"),
)
"""One case of each backend, of each checkpointing and of each kind of MLP; the others in the long run."""


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    tasks: dict[str, tuple[TrialTask, str | None]] = {
        name: (task, None) for name, task in CASES.items() if LONG or name in OFTEN
    }
    tasks |= {fault: (CASES["ddp"], fault) for fault in SLICE_FAULTS}
    tasks[TILED_MLP] = (UNEVEN, TILED_MLP)
    return compared(tasks, tmp_path_factory.mktemp("slices"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", telling(CASES, OFTEN))
def test_mlps_in_slices_train_what_whole_ones_train(differences: dict[str, dict[str, float]], name: str) -> None:
    assert_same(differences[name], BOUND)


@pytest.mark.ranks
@pytest.mark.parametrize("fault", [*SLICE_FAULTS, TILED_MLP])
def test_a_planted_fault_leaves_the_bounds(differences: dict[str, dict[str, float]], fault: str) -> None:
    assert differences[fault]["norm"] > 1e-4, differences[fault]


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_every_backend_checkpointing_and_accumulation_trains_the_same(tmp_path: Path) -> None:
    cells = itertools.product(BACKENDS, ("none", "full"), (1, 4), (2, 16))
    tasks = {
        f"{name}, {mode}, {size}, {slices}": tiny_task(
            BACKENDS[name],
            model=SHORT_LLAMA,
            activation_checkpointing=mode,
            **(SHARED | {"micro_batch": size, "mlp_slices": slices}),
        )
        for name, mode, size, slices in cells
    }
    for name, difference in compared({name: (task, None) for name, task in tasks.items()}, tmp_path).items():
        assert difference and all(difference[key] <= BOUND[key] for key in BOUND), (name, difference)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-autocast"])
def test_bf16_training_stays_within_the_bounds_that_stand(tmp_path: Path, precision: str) -> None:
    kinds = BACKENDS if precision == "bf16-mixed" else {name: BACKENDS[name] for name in ("ddp", "zero-2", "zero-3")}
    tasks = {name: tiny_task(kinds[name], model=SHORT_LLAMA, precision=precision, **SHARED) for name in kinds}
    for name, difference in compared({name: (task, None) for name, task in tasks.items()}, tmp_path).items():
        assert difference and all(difference[key] <= BF16[key] for key in BF16), (name, difference)


@pytest.mark.ranks
@pytest.mark.skipif(not LONG, reason="the wide table: SHARDTUNE_TEST_LONG=1")
def test_it_trains_the_same_with_context_parallelism_on_four_ranks(tmp_path: Path) -> None:
    replicated = {"kind": "fsdp2", "dp_shard": 2, "dp_replicate": 2}
    strategies = {"fsdp2, replicated": replicated} | {name: BACKENDS[name] for name in ("ddp", "zero-2", "zero-3")}
    changes = SHARED | {"sequence_length": 36, "context_parallel": 2, **FULL}
    tasks = {name: (tiny_task(each, ranks=4, model=SHORT_LLAMA, **changes), None) for name, each in strategies.items()}
    for name, difference in compared(tasks, tmp_path, ranks=4).items():
        assert difference and all(difference[key] <= BOUND[key] for key in BOUND), (name, difference)


@pytest.mark.ranks
def test_a_rank_rejects_a_model_with_experts(host: HostProcess) -> None:
    report = host.run(tiny_task(BACKENDS["ddp"], model=MIXTRAL, **SHARED))[0]
    assert report.failure is not None and report.failure.kind == "illegal", report
    assert "mlp_slices (4) is not for this training: its MLP (MixtralSparseMoeBlock)" in report.failure.message
    assert report.failure.message.endswith("use 1")


@pytest.mark.ranks
def test_the_peak_of_a_rank_falls(run: Callable[..., RankReport]) -> None:
    """An MLP of a width of 1,024 over 4 × 96 tokens saves 6 MiB in each of two blocks; slices keep its input of 96 KiB."""

    def peak_mib(slices: int) -> float:
        model = SHORT_LLAMA | {"intermediate_size": 1024}
        changes = {"mlp_slices": slices, "micro_batch": 4, "model": model}
        memory = run(BACKENDS["ddp"], **changes, sequence_length=96, parity_steps=2).memory
        assert memory is not None and memory.peak_allocated_gib is not None
        return memory.peak_allocated_gib * 2**10

    whole, some, many = map(peak_mib, (1, 4, 16))
    assert whole - some > 11 and some - many > 0.5, (whole, some, many)


class Mlp(nn.Module):
    """MLP that counts its forwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.lengths: list[int] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.lengths.append(hidden.shape[1])
        output: torch.Tensor = self.down(torch.relu(self.up(hidden)))
        return output


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.mlp(self.norm(hidden))


def blocks(count: int = 2, slices: int = 1, mode: Any = "none") -> list[Block]:
    torch.manual_seed(0)
    made = [Block() for _ in range(count)]
    if slices > 1:
        mlp_slices.slice_mlps([*made], slices)
    checkpointing.apply([*made], mode)
    return made


def gradients(made: list[Block], shape: tuple[int, ...] = (2, 23, 8)) -> list[torch.Tensor]:
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
    hidden = inputs
    for block in made:
        hidden = block(hidden)
    hidden.square().sum().backward()  # type: ignore[no-untyped-call]
    return [inputs.grad, *(parameter.grad for block in made for parameter in block.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("slices", [2, 5, 46, 64])
def test_gradients_are_the_same_and_the_mlp_runs_twice_under_every_checkpointing(slices: int, mode: str) -> None:
    """A checkpoint around the block ends its repetition at the MLP's input."""
    made = blocks(slices=slices, mode=mode)
    for gradient, wanted in zip(gradients(made), gradients(blocks()), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)
    for block in made:
        assert len(block.mlp.lengths) == 2 * slices and sum(block.mlp.lengths) == 2 * 46
        assert max(block.mlp.lengths) - min(block.mlp.lengths) <= 1


def test_no_tensor_between_the_linear_layers_holds_more_than_a_slice() -> None:
    made, sizes = blocks(slices=8), list[tuple[int, ...]]()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.extend(tuple(leaf.shape) for leaf in tree_leaves(result) if torch.is_tensor(leaf))
            return result

    with Recorder():
        gradients(made, (4, 16, 8))
    wide = [shape for shape in sizes if len(shape) == 3 and shape[-1] == 32]
    assert wide and max(shape[1] for shape in wide) == 8


def test_without_gradients_slices_keep_nothing() -> None:
    made, whole = blocks(slices=3), blocks()
    with torch.no_grad():
        inputs = torch.randn(2, 7, 8)
        torch.testing.assert_close(made[0](inputs), whole[0](inputs))


def test_a_second_backward_is_caught() -> None:
    made = blocks(slices=2)
    loss = made[0](torch.randn(1, 4, 8)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(mlp_slices.SliceError, match="backward asked for one twice; set it to 1"):
        loss.backward()


def test_an_mlp_that_repeats_otherwise_is_caught() -> None:
    made = blocks(slices=2)
    loss = made[0](torch.randn(1, 4, 8)).sum()
    made[0].mlp.up = nn.Linear(8, 16)
    made[0].mlp.down = nn.Linear(16, 8)
    with pytest.raises(mlp_slices.SliceError, match="saves the same tensors whenever it runs on a slice"):
        loss.backward()


def test_a_block_that_gives_its_mlp_more_than_hidden_states_is_caught() -> None:
    made = blocks(slices=2)
    with pytest.raises(
        mlp_slices.SliceError, match=r"mlp_slices \(2\) expects that a block calls its MLP as mlp\(hidden"
    ):
        made[0].mlp(hidden=torch.randn(1, 4, 8))


class Chance(Mlp):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.drop = nn.Dropout(0.1)


class Residual(Mlp):
    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(hidden) + residual


class Routed(Mlp):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.experts = nn.ModuleList([nn.Linear(width, width)])


class Stacked(Mlp):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.experts = nn.Parameter(torch.zeros(2, width, width))


@pytest.mark.parametrize(
    ("mlp", "why"),
    [
        (Chance(8), "drops values by chance"),
        (Residual(8), "takes more than hidden states"),
        (Routed(8), "has a list of modules"),
        (Stacked(8), "parameters of no linear layer"),
        (nn.Sequential(nn.ReLU()), "has no linear layer"),
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), "depends on other tokens"),
        (None, "has no module named mlp"),
    ],
    ids=["dropout", "residual", "list", "experts", "no layer", "batch norm", "none"],
)
def test_a_block_whose_mlp_may_depend_on_more_than_a_token_is_rejected(mlp: nn.Module | None, why: str) -> None:
    block: Any = Block()
    if mlp is None:
        del block.mlp
    else:
        block.mlp = mlp
    with pytest.raises(ValueError, match=rf"mlp_slices \(4\) is not for this training: .*{why}.*; use 1"):
        mlp_slices.slice_mlps([block], 4)


def test_a_model_without_blocks_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"mlp_slices \(4\) .* no list of repeated blocks; use 1"):
        mlp_slices.slice_mlps([], 4)
    assert mlp_modules.note_of([]) is not None


@pytest.mark.parametrize(("model", "why"), [(LLAMA, None), (GPT2, None), (MIXTRAL, "experts")], ids=str)
def test_a_summary_says_whether_the_mlps_can_have_slices(model: dict[str, Any], why: str | None) -> None:
    note = model_summary.of(ModelSpec(name="m", config=model), Workload(sequence_length=32, global_batch=8)).mlp_note
    assert note is None if why is None else note is not None and why in note
