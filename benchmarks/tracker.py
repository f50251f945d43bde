"""Compare predicted peak memory with PyTorch's FSDPMemTracker: fake tensors, a fake process group, no device, no weights.

`python -m benchmarks.tracker [--case NAME] [--json]`; one trace takes seconds to a minute and a CPU core. Needs torch.
"""

import argparse
import functools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.training.models import preset
from shardtune.tuner.prediction.candidates import FSDP2, FULL, NONE, Dtypes, Implementation, from_rows
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.shapes.config_shape import from_config

_LAYER_FIELDS = ("num_hidden_layers", "n_layer")


@dataclass(frozen=True)
class Case:
    """One traced configuration. `layers` cuts the model where all of them would be slow; the prediction is cut alike."""

    model: str
    sequence: int
    ranks: int
    micro_batch: int
    checkpointing: str
    layers: int

    def config(self) -> dict[str, Any]:
        """The preset's configuration with that many layers, without dropout."""
        config = dict(preset(self.model).config)
        field = next(name for name in _LAYER_FIELDS if name in config)
        return {**config, field: self.layers} | {name: 0.0 for name in config if "pdrop" in name}


def cases(full: bool) -> list[Case]:
    """Cases of the comparison; without `full`, four layers each."""
    results = []
    for model, sequences in (
        ("llama-2-7b", (2048, 32768)), ("qwen3-8b", (2048, 32768)), ("mixtral-8x7b", (2048, 32768)),
        ("gpt2-large", (1024,)),
    ):  # fmt: skip
        depth = int(next(preset(model).config[name] for name in _LAYER_FIELDS if name in preset(model).config))  # type: ignore[arg-type]
        for sequence in sequences:
            for ranks in (8, 64):
                for checkpointing in ("none", "full"):
                    for micro_batch in (1, 4):
                        layers = depth if full else 4
                        results.append(Case(model, sequence, ranks, micro_batch, checkpointing, layers))
    return results


def traced(case: Case) -> dict[str, float]:
    """Peak bytes by kind, and their total, over the second training step."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case.ranks)
    mesh = init_device_mesh("cpu", (case.ranks,), mesh_dim_names=("dp_shard",))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _build(case)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        blocks = _blocks(model)
        for block in blocks:
            if case.checkpointing == "full":
                block.forward = functools.partial(
                    checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
                )
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.zeros(case.micro_batch, case.sequence, dtype=torch.int64)
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((tokens,))
        with tracker:
            for step in range(2):
                model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    # DTensor's first pass through each operator runs it on whole fake tensors to find its sharding,
                    # which the tracker counts (17 GiB of "OptState" for a 1 GiB state).
                    tracker.reset_mod_stats()
                    tracker._peak_mem.clear()
                    tracker._peak_mem_snap.clear()
        snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return {str(getattr(kind, "value", kind)).lower(): float(size) for kind, size in snapshot.items()}


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """Skip the mask: on a device an unpadded batch needs none (`is_causal`); under fake tensors transformers would make
    one of
    sequence² elements per layer, because it cannot look into the position ids."""


@contextmanager
def _without_masks() -> Iterator[None]:
    """Skip the masks of all models of this process meanwhile. Models built later need theirs: those with sliding windows
    would attend to all tokens."""
    own = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
    ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa", _no_mask)
    try:
        yield
    finally:
        ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa", own)


def _build(case: Case, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    config = case.config()
    new_config = AutoConfig.for_model(config.pop("model_type"), **config)
    options: dict[str, Any] = {"attn_implementation": "sdpa", "dtype": dtype, "trust_remote_code": False}
    if "num_local_experts" in config:
        options["experts_implementation"] = "grouped_mm"  # the eager loop over experts depends on data
    model: torch.nn.Module = AutoModelForCausalLM.from_config(new_config, **options)
    return model.train()


def _blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    lists = [list(module) for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=lambda blocks: sum(p.numel() for block in blocks for p in block.parameters()))


def predicted(case: Case) -> dict[str, float]:
    """The predictor's peak for the same program: CPU tensors, no allocator."""
    shape = from_config(case.config(), case.model)
    candidate = from_rows(
        [
            {
                "backend": FSDP2, "shard": case.ranks, "regather": case.ranks, "sequence": case.sequence,
                "micro_batch": case.micro_batch, "checkpointing": FULL if case.checkpointing == "full" else NONE,
            }
        ]
    )  # fmt: skip
    table = peak_memory(shape, candidate, Dtypes(), Implementation(fused_optimizer=True, keeps_logits=False))
    terms = {name: float(values[0]) for name, values in table.terms.items()}
    return {**terms, "total": float(table.allocated[0]), "moment": float(table.moment[0])}


def compare(case: Case) -> dict[str, Any]:
    """Traced and predicted GiB of one case."""
    began = time.perf_counter()
    with _without_masks():
        actual = traced(case)
    guess = predicted(case)
    return {
        "case": asdict(case),
        "traced_gib": round(actual["total"] / GIB, 3),
        "predicted_gib": round(guess["total"] / GIB, 3),
        "error": round(guess["total"] / actual["total"] - 1, 4),
        "traced": {name: round(size / GIB, 3) for name, size in actual.items()},
        "predicted": {name: round(size / GIB, 3) for name, size in guess.items() if name != "moment"},
        "moment": int(guess["moment"]),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracker", description=__doc__)
    parser.add_argument("--case", default="", help="only models whose name contains this")
    parser.add_argument("--sequence", type=int, default=0, help="only this sequence length")
    parser.add_argument("--ranks", type=int, default=0, help="only this many ranks")
    parser.add_argument("--layers", type=int, default=4, help="layers of each model; 0: all")
    options = parser.parse_args()
    for case in cases(full=options.layers == 0):
        if options.case not in case.model or options.sequence not in (0, case.sequence):
            continue
        if options.ranks not in (0, case.ranks):
            continue
        case = replace(case, layers=options.layers or case.layers)
        print(json.dumps(compare(case)), flush=True)


if __name__ == "__main__":
    main()
