"""Page-locked host memory, which torch allocates in powers of two."""

import re
from pathlib import Path

import pytest
import torch

from shardtune.api_schemas.base import GIB
from shardtune.api_schemas.strategies import Fsdp1Config, Fsdp2Config, Offload, Strategy, TrialConfig, ZeroConfig
from shardtune.api_schemas.training.models import preset
from shardtune.tuner.prediction.candidates import Dtypes, Implementation
from shardtune.tuner.prediction.configs import from_configs
from shardtune.tuner.prediction.footprint import peak_memory
from shardtune.tuner.prediction.shapes.config_shape import from_config

SEVEN_B = from_config(preset("llama-2-7b").config)
PAGEABLE = Offload(pin_memory=False)


def host_gib(strategy: Strategy, device: str = "cuda") -> float:
    candidates = from_configs([TrialConfig(strategy=strategy)], 2048, 8)
    return float(peak_memory(SEVEN_B, candidates, Dtypes(), Implementation(), device).host[0]) / GIB


def power_of_two(gib: float) -> float:
    size = 2.0**-40
    while size < gib:
        size *= 2
    return size


def test_each_flat_buffer_of_zero_takes_a_power_of_two() -> None:
    partition = SEVEN_B.parameters / 8 / GIB
    staged = power_of_two(2 * partition) + power_of_two(2 * SEVEN_B.largest_parameter / GIB)
    expected = 8 * partition + 2 * power_of_two(4 * partition) + staged
    assert host_gib(ZeroConfig(stage=2, offload_optimizer=Offload())) == pytest.approx(expected)


def test_zero_3_pins_its_gradients_by_sub_group_and_its_parameters_as_a_whole() -> None:
    partition = SEVEN_B.parameters / 8 / GIB
    strategy = ZeroConfig(stage=3, offload_optimizer=Offload(), offload_param=Offload(), sub_group_size=500_000_000)
    groups = power_of_two(4 * 0.5e9 / GIB) + power_of_two(4 * (partition - 0.5e9 / GIB))
    expected = 12 * partition + power_of_two(4 * partition) + groups + power_of_two(2 * partition)
    assert host_gib(strategy) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("pinned", "pageable"),
    [
        (ZeroConfig(stage=1, offload_optimizer=Offload()), ZeroConfig(stage=1, offload_optimizer=PAGEABLE)),
        (
            ZeroConfig(stage=3, offload_optimizer=Offload(), offload_param=Offload()),
            ZeroConfig(stage=3, offload_optimizer=PAGEABLE, offload_param=PAGEABLE),
        ),
        (
            Fsdp2Config(dp_shard=8, cpu_offload=True),
            Fsdp2Config(dp_shard=8, cpu_offload=True, pin_memory=False),
        ),
    ],
)
def test_only_pinned_memory_is_rounded_and_never_on_cpu_ranks(pinned: Strategy, pageable: Strategy) -> None:
    assert host_gib(pageable) < host_gib(pinned) < 2 * host_gib(pageable)
    assert host_gib(pinned, "cpu") == pytest.approx(host_gib(pageable, "cpu"))


def test_fsdp1_pins_one_flat_tensor_per_unit() -> None:
    block = 4 * SEVEN_B.block_parameters / 8 / GIB
    root = 4 * SEVEN_B.outside_parameters / 8 / GIB
    flat = SEVEN_B.layers * power_of_two(block) + power_of_two(root)
    expected = 8 * SEVEN_B.parameters / 8 / GIB + 2 * flat
    assert host_gib(Fsdp1Config(dp_shard=8, cpu_offload=True)) == pytest.approx(expected)


def test_torch_rounds_pinned_tensors_of_any_size_by_default() -> None:
    """The rule was read in torch 2.13; a torch that limits it makes these predictions too high."""
    include = Path(torch.__file__).parent / "include"
    allocator = (include / "ATen/core/CachingHostAllocator.h").read_text()
    assert "return c10::llvm::PowerOf2Ceil(size);" in allocator
    config = (include / "c10/core/AllocatorConfig.h").read_text()
    for name in ("pinned_max_round_threshold_", "pinned_max_cached_size_"):
        assert re.search(rf"size_t {name}{{std::numeric_limits<size_t>::max\(\)}}", config), name
