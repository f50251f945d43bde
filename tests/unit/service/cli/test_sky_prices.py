"""Prices of SkyPilot's catalogue: lines as its version 8 has them, and what is wrong with a catalogue."""

import json
import os
from pathlib import Path

import pytest

import shardtune as st
from shardtune.service.cli.commands.app import app as cli
from shardtune.service.cli.errors import InputError

RUN = ("llama-3.1-8b", "--tokens", "3e11", "--gpus", "h100,a100-40gb,mi300x", "--counts", "64")
LAMBDA = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu_4x_general,,,4.0,16.0,0.2,us-east-1,,
gpu_1x_h100_pcie,H100,1.0,26.0,200.0,1.00,us-east-1,"{'Gpus': [{'Name': 'H100', 'MemoryInfo': {'SizeInMiB': 81920}}]}",
gpu_8x_h100_sxm5,H100,8.0,208.0,1800.0,31.92,us-east-1,"{'Gpus': [{'Name': 'H100', 'MemoryInfo': {'SizeInMiB': 81920}}]}",
gpu_8x_a100,A100,8.0,124.0,1800.0,10.32,us-west-1,"{'Gpus': [{'Name': 'A100', 'MemoryInfo': {'SizeInMiB': 40960}}]}",
"""
VAST = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region
8x-H100_SXM,H100,8,32,64.0,"{'Gpus': [{'Name': 'H100', 'MemoryInfo': {'SizeInMiB': 652472}}]}",16.00,0.00,"Vietnam, VN, AS"
8x-H100_NVL,H100,8,32,64.0,"{'Gpus': [{'Name': 'H100', 'MemoryInfo': {'SizeInMiB': 766640}}]}",8.00,0.00,"Bulgaria, BG, EU"
8x-A100_PCIE,A100,8,32,64.0,"{'Gpus': [{'Name': 'A100', 'MemoryInfo': {'SizeInMiB': 655360}}]}",4.00,0.00,"Oregon, US, NA"
"""
RUNPOD = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Region,SpotPrice,Price,AvailabilityZone,GpuInfo
8x_H100-SXM_SECURE,H100-SXM,8.0,8.0,117.0,CA,12.00,24.00,CA-1,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 80}}]}"
"""
GCP = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a3-highgpu-8g,208.0,1872.0,,,,us-central1,us-central1-a,9.4,2.9
,,,H100,8,H100,us-central1,us-central1-a,4.0,2.0
"""
MITHRIL = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,GpuInfo
h100-80gb.sxm.8x,H100,8,168,1814,8.0,8.0,us-central2-a,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 81920}}], 'TotalGpuMemoryInMiB': 655360}"
"""
CLOUDS = {"lambda": LAMBDA, "vast": VAST, "runpod": RUNPOD, "gcp": GCP, "mithril": MITHRIL}


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Catalogue of version 10 in a home of the test's own, beside an older version."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for version, clouds in (("v9", {"aws": LAMBDA.replace("31.92", "0.08")}), ("v10", CLOUDS)):
        for cloud, text in clouds.items():
            file = tmp_path / ".sky/catalogs" / version / cloud / "vms.csv"
            file.parent.mkdir(parents=True)
            file.write_text(text)
            os.utime(file, (1_795_000_000, 1_795_000_000))
    return tmp_path / ".sky/catalogs/v10"


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, float], list[str], str | None]:
    cli(["plan", *RUN, *arguments, "--json"], standalone_mode=False)
    plan = json.loads(capsys.readouterr().out)
    costs = {
        row["gpu"]: round(row["cost"]["expected"] / row["gpu_hours"]["expected"], 4)
        for row in plan["rows"]
        if row["cost"]
    }
    return costs, plan["notes"], plan["currency"]


def test_the_lowest_price_on_demand_names_cloud_instance_and_region(
    catalogue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs, notes, currency = planned(capsys, "--prices", "sky")
    assert costs == {"h100": 2.0, "a100-40gb": 1.29} and currency == "USD"
    assert any(
        note.startswith(
            "price of h100: 2 USD, on demand, vast 8x-H100_SXM in Vietnam, VN, AS (SkyPilot's catalogue v10, "
        )
        and "file of 2026-11-18); SkyPilot's H100 can also be H100-PCIe-80GB" in note
        for note in notes
    ), notes
    assert "SkyPilot's catalogue v10 has no price, on demand, of mi300x in instances of 8 GPUs" in notes
    assert "lowest prices among the clouds of SkyPilot's catalogue on this machine: gcp, lambda, runpod, vast" in notes


def test_a_cloud_a_size_or_spot_instances_are_chosen(catalogue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, "--prices", "sky:lambda")[0] == {"h100": 3.99, "a100-40gb": 1.29}
    assert planned(capsys, "--prices", "sky", "--gpus-per-node", "1")[0] == {"h100": 1.0}
    costs, notes, _ = planned(capsys, "--prices", "sky", "--spot")
    assert costs == {"h100": 1.5} and any("spot, runpod 8x_H100-SXM_SECURE in CA" in note for note in notes)
    assert notes[-1] == "spot instances are taken away at times: state how often, as --failure-rate"


def test_a_price_of_ones_own_replaces_that_of_the_catalogue(
    catalogue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs, _, currency = planned(capsys, "--prices", "sky", "--price", "h100=7", "--currency", "usd")
    assert costs == {"h100": 7.0, "a100-40gb": 1.29} and currency == "usd"


def test_a_budget_without_a_currency_is_taken_to_be_in_that_of_the_prices(
    catalogue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = ("--prices", "sky", "--budget", "5e6")
    words = "budget (5e+06): taken to be in USD, as SkyPilot's prices are"
    assert words in planned(capsys, *stated)[1]
    assert words not in planned(capsys, *stated, "--currency", "USD")[1]


def test_python_reads_the_same_prices(catalogue: Path) -> None:
    made = st.plan("llama-3.1-8b", tokens=3e11, gpus="h100", counts=64, prices="sky:runpod", spot=True)
    assert made.values is not None and made.values.currency == "USD"
    (row,) = made.values.rows
    assert row.cost is not None and row.cost.expected == pytest.approx(1.5 * row.gpu_hours.expected)
    with pytest.raises(st.InputError, match=r"^prices \(sky:lamda\) has no file"):
        st.plan("llama-3.1-8b", tokens=3e11, gpus="h100", counts=64, prices="sky:lamda")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--prices", "sky:lamda"),
            r"--prices \(sky:lamda\) has no file in ~/.sky/catalogs/v10; did you mean sky:lambda\?",
        ),
        (
            ("--prices", "sky:"),
            r"--prices \(sky:\) has no file in .*; use one of gcp, lambda, mithril, runpod, vast",
        ),
        (
            ("--prices", "sky:gcp"),
            r"has no price, on demand, of h100, a100-40gb, mi300x in instances of 8 GPUs \(.* gcp\)",
        ),
        (("--prices", "sky:mithril"), r"has no price, on demand, of h100, a100-40gb, mi300x in .* mithril\)"),
        (("--prices", "sky", "--currency", "EUR"), r"--currency \(EUR\) is not that of SkyPilot's prices, USD"),
        (
            ("--prices", "sky", "--price", "h100=2"),
            r"--price \(h100=2\) may be in another currency .*; add --currency USD",
        ),
        (("--prices", "sky", "--gpus", "a100"), r"gpus \('a100'\) can be any of A100-SXM4-40GB, .*; name one of them"),
        (("--spot",), r"--spot \(given\) is a choice among SkyPilot's prices; add --prices sky"),
        (("--spot", "--price", "h100=2"), r"--spot \(given\)"),
    ],
)
def test_a_wrong_choice_is_named(catalogue: Path, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        cli(["plan", *RUN, *arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            LAMBDA.replace(",Price,", ",Cost,"),
            r"cannot read lambda/vms.csv in ~/.sky/catalogs/v10: it has no column Price;",
        ),
        ("", "it has no column AcceleratorName, InstanceType, AcceleratorCount, Price, Region, GpuInfo"),
        ("\0", "it has no column"),
    ],
)
def test_a_file_of_another_form_is_named(catalogue: Path, text: str, words: str) -> None:
    (catalogue / "lambda/vms.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        cli(["plan", *RUN, "--prices", "sky"], standalone_mode=False)


def test_without_a_catalogue_the_remedy_is_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"finds no catalogue of SkyPilot in ~/.sky/catalogs; run `sky gpus list`"):
        cli(["plan", *RUN, "--prices", "sky"], standalone_mode=False)
