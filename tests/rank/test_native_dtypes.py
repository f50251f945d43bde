"""Dtypes that torch finds in this processor, and in a lesser one that oneDNN is set to."""

import json
from pathlib import Path

import pytest

from tests.support.processes import preloaded_forks

pytestmark = pytest.mark.ranks


def looked(log: Path, **environment: str) -> dict[str, dict[str, float] | str]:
    """oneDNN asks the environment at its first use, which no process has had that a fork comes from."""
    printed = preloaded_forks.output_of("shardtune.workers.rank.inventory", "2", log=log, environment=environment)
    actual_printed: dict[str, dict[str, float] | str] = json.loads(printed.splitlines()[-1])
    return actual_printed


def test_a_processor_without_the_instruction_emulates_and_both_rates_are_measured(tmp_path: Path) -> None:
    lesser = looked(tmp_path / "printed", ONEDNN_MAX_CPU_ISA="AVX2", CUDA_VISIBLE_DEVICES="")
    assert lesser["cpu_dtypes"] == "float32"
    rates = lesser["matmul_flops"]
    assert isinstance(rates, dict) and set(rates) == {"bfloat16", "float32"} and min(rates.values()) > 0


@pytest.mark.skipif("avx512_bf16" not in Path("/proc/cpuinfo").read_text(), reason="the processor has no avx512_bf16")
@pytest.mark.parametrize(("isa", "native"), [("DEFAULT", True), ("AVX512_CORE_BF16", True), ("AVX512_CORE", False)])
def test_the_instruction_counts_only_where_onednn_may_use_it(tmp_path: Path, isa: str, native: bool) -> None:
    actual_looked = looked(tmp_path / "printed", ONEDNN_MAX_CPU_ISA=isa, CUDA_VISIBLE_DEVICES="")
    assert ("bfloat16" in actual_looked["cpu_dtypes"]) is native
