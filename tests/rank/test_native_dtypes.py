"""What torch finds in this processor, and in a lesser one that oneDNN is told to take it for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks


def looked(**environment: str) -> dict[str, dict[str, float] | str]:
    command = [sys.executable, "-m", "shardtune.workers.rank.inventory", "2"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120, env={**os.environ, **environment})
    found: dict[str, dict[str, float] | str] = json.loads(done.stdout)
    return found


def test_a_processor_without_the_instruction_emulates_and_both_rates_are_measured() -> None:
    lesser = looked(ONEDNN_MAX_CPU_ISA="AVX2", CUDA_VISIBLE_DEVICES="")
    assert lesser["cpu_dtypes"] == "float32"
    rates = lesser["matmul_flops"]
    assert isinstance(rates, dict) and set(rates) == {"bfloat16", "float32"} and min(rates.values()) > 0


@pytest.mark.skipif("avx512_bf16" not in Path("/proc/cpuinfo").read_text(), reason="the processor has no avx512_bf16")
@pytest.mark.parametrize(("isa", "native"), [("DEFAULT", True), ("AVX512_CORE_BF16", True), ("AVX512_CORE", False)])
def test_the_instruction_counts_only_where_onednn_may_use_it(isa: str, native: bool) -> None:
    assert ("bfloat16" in looked(ONEDNN_MAX_CPU_ISA=isa, CUDA_VISIBLE_DEVICES="")["cpu_dtypes"]) is native
