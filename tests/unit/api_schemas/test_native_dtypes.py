"""Dtypes that a device has or only emulates, and the precision that follows."""

import pytest

from shardtune.api_schemas.base import dtypes_listed, listed_dtypes
from shardtune.api_schemas.training.native_dtypes import (
    DeviceDtypes,
    decide,
    flops_per_s,
    of_architecture,
    of_capability,
)
from shardtune.api_schemas.training.workload import PRECISIONS
from shardtune.tuner.prediction import catalogue

MIXED, EXACT = PRECISIONS["bf16-mixed"], PRECISIONS["fp32"]
AVX2 = DeviceDtypes("AMD EPYC", is_cpu=True, native="float32", matmul_flops={"bfloat16": 1.2e9, "float32": 6.7e10})
AVX512_BF16 = DeviceDtypes("AMD EPYC", is_cpu=True, native="float32, bfloat16")
V100, A100 = (catalogue.dtypes_of(catalogue.parse_cluster(f"8x{name}")) for name in ("v100-16gb", "a100-80gb"))
UNKNOWN_CPU = DeviceDtypes("some CPU", is_cpu=True)
UNKNOWN_GPU = DeviceDtypes("Novel 9", is_cpu=False)


@pytest.mark.parametrize(
    ("devices", "precision", "because"),
    [
        ([AVX512_BF16], MIXED, "AMD EPYC has bfloat16 natively"),
        ([AVX2], EXACT, "AMD EPYC only emulates bfloat16 (1.2 GFLOP/s in bfloat16, 67 GFLOP/s in float32)"),
        ([AVX512_BF16, AVX2], EXACT, "only emulates"),
        ([UNKNOWN_CPU], EXACT, "nobody has looked"),
        ([UNKNOWN_GPU], MIXED, "nobody has looked at this one"),
        ([V100], EXACT, "V100-SXM2-16GB only emulates bfloat16"),
        ([A100], MIXED, "has bfloat16 natively"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_precision_that_is_left_out_is_what_every_device_has(devices, precision, because):
    chosen, note = decide(None, devices)
    assert chosen == precision
    assert note is not None and note.startswith(f"precision (auto): {precision.name}, because ") and because in note


def test_a_stated_precision_stays_and_is_told_what_it_costs():
    assert decide(MIXED, [AVX512_BF16]) == (MIXED, None)
    assert decide(EXACT, [AVX2]) == (EXACT, None)
    precision, note = decide(MIXED, [AVX512_BF16, AVX2])
    assert precision == MIXED
    assert note == (
        "precision (bf16-mixed): AMD EPYC only emulates bfloat16 (1.2 GFLOP/s in bfloat16, 67 GFLOP/s in float32); "
        "state fp32, or leave it out"
    )


def test_what_was_measured_counts_more_than_what_a_processor_says_of_itself():
    def cpu(bfloat16, native):
        return DeviceDtypes("x", is_cpu=True, native=native, matmul_flops={"bfloat16": bfloat16, "float32": 1e10})

    assert cpu(1e9, "float32, bfloat16").emulates("bfloat16")
    assert cpu(9e9, None).emulates("bfloat16") is False
    assert cpu(9e9, "float32").emulates("bfloat16"), "fast, but through float32"


def test_a_rate_that_contradicts_the_reason_is_told_with_its_remedy():
    slow, fast = (
        DeviceDtypes("x", True, "float32, bfloat16", {"bfloat16": rate, "float32": 4e10}) for rate in (2.3e10, 9e10)
    )
    assert "slower when it was measured: on a busy machine, `measure-hardware` again" in str(decide(None, [slow])[1])
    assert "slower" not in str(decide(None, [fast])[1])
    assert "FLOP/s" in str(decide(None, [slow])[1]), "the rates are the reason for the doubt"
    unnamed = DeviceDtypes("x", True, None, {"bfloat16": 9e10, "float32": 4e10})
    assert "(90 GFLOP/s in bfloat16, 40 GFLOP/s in float32)" in str(decide(None, [unnamed])[1])


def test_rates_that_decide_nothing_are_not_stated():
    """They were measured beside other programs, and differed from start to start."""
    named = DeviceDtypes("x", True, "float32, bfloat16", {"bfloat16": 9e10, "float32": 4e10})
    assert decide(None, [named])[1] == "precision (auto): bf16-mixed, because x has bfloat16 natively"


@pytest.mark.parametrize(
    ("capability", "native"),
    [
        ((7, 0), "float32, float16"),
        ((7, 5), "float32, float16"),
        ((8, 0), "float32, float16, bfloat16"),
        ((8, 9), "float32, float16, bfloat16, float8"),
        ((12, 0), "float32, float16, bfloat16, float8"),
    ],
)
def test_gpus_by_their_compute_capability(capability, native):
    assert of_capability(capability) == native


def test_a_list_of_dtypes_is_read_as_it_was_written() -> None:
    names = ("float32", "float16", "bfloat16", "float8")
    assert listed_dtypes(names) == of_capability((8, 9)) and dtypes_listed(listed_dtypes(names)) == names
    assert DeviceDtypes("x", True, listed_dtypes(names)).native_names == names
    assert DeviceDtypes("x", True).native_names == ()


def test_every_catalogued_gpu_says_what_it_has():
    assert all(of_architecture(catalogue.find(name).architecture) for name in catalogue.names())


def test_rates_read_like_a_data_sheet():
    assert [flops_per_s(rate) for rate in (1.2e9, 6.7e10, 9.89e14)] == ["1.2 GFLOP/s", "67 GFLOP/s", "989 TFLOP/s"]


@pytest.mark.parametrize("devices", [[AVX512_BF16], [AVX2], [UNKNOWN_GPU], [A100], []])
def test_no_device_chooses_states_below_float32(devices):
    assert not decide(None, devices)[0].has_low_states


def test_gpus_with_float16_alone_are_pointed_to_it():
    precision, note = decide(None, [V100])
    assert precision == EXACT and note.endswith("; fp16-mixed computes in float16")
    assert decide(MIXED, [V100])[1].endswith("state fp16-mixed or fp32, or leave it out")
    assert decide(PRECISIONS["fp16-mixed"], [V100, A100]) == (PRECISIONS["fp16-mixed"], None)
    assert "fp16-mixed" not in decide(None, [AVX2])[1] and "fp16-mixed" not in decide(None, [A100])[1]
