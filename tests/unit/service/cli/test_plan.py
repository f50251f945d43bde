"""`shardtune plan` and `POST /v1/plans` give the same plan, and reject the same mistakes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from shardtune.service.app import create_app
from shardtune.service.cli.commands.app import app as cli
from shardtune.service.cli.errors import InputError
from shardtune.service.cli.plan.options import read_counts
from shardtune.service.settings import Settings
from tests.support.service.local_client import local_client

RUN = ("llama-3.1-8b", "--tokens", "3e11", "--gpus", "h100,h200", "--counts", "8..32")


def plan(*arguments: str) -> None:
    cli(["plan", *arguments], standalone_mode=False)


@pytest.fixture
def client(sqlite_url: str) -> TestClient:
    return local_client(create_app(Settings(database_url=sqlite_url)))


def test_the_command_and_the_route_agree(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    plan(*RUN, "--price", "h100=2.10,h200=2.60", "--start", "2098-12-01", "--deadline", "2099-03-01", "--json")
    printed = json.loads(capsys.readouterr().out)
    body = {
        "model": "llama-3.1-8b", "tokens": 3e11, "gpus": ["h100", "h200"], "counts": [8, 16, 32],
        "prices": {"h100": 2.1, "h200": 2.6}, "start": "2098-12-01", "deadline": "2099-03-01",
    }  # fmt: skip
    response = client.post("/v1/plans", json=body)
    assert response.status_code == 200 and response.json() == printed
    assert len(printed["rows"]) == 6 and printed["cheapest_in_time"]["cost"]["low"] > 0


def test_the_text_names_the_cheapest_in_time_with_its_bands(capsys: pytest.CaptureFixture[str]) -> None:
    plan(*RUN, "--price", "h100=2.10", "--deadline", "2099-03-01", "--budget", "1e6")
    shown = capsys.readouterr().out
    assert "cheapest that ends by 2099-03-01: " in shown and "fastest within 1,000,000: " in shown
    assert "Nothing was measured at these sizes" in shown and "no price of h200" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--deadline", "2001-01-01"), r"deadline \(2001-01-01\) has passed: today is"),
        (("--deadline", "soon"), r"--deadline \('soon'\) must be a day"),
        (("--price", "h100"), r"--price \('h100'\) must read like"),
        (("--price", "h100=0"), "prices.h100"),
        (("--price", "h100=nan"), "prices.h100"),
        (("--price", "b200=2"), r"prices \(b200\) names no kind"),
        (("--counts", "0..8"), "--counts"),
        (("--counts", "8..4"), "--counts"),
        (("--counts", "many"), r"--counts \('many'\)"),
        (("--counts", "10000000"), r"counts \(10000000\) must be between"),
        (("--gpus", "h999"), "h999.*is not in the catalogue"),
        (("--tokens", "0"), r"tokens \(0"),
        (("--tokens", "nan"), "tokens"),
        (("--network", "token-ring"), r"network \(token-ring\)"),
        (("--budget", "5"), r"budget \(5\) needs prices"),
        (("--measured", "none.json"), r"--measured \(none.json\) cannot be read"),
    ],
)
def test_bad_options_are_named(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan(*RUN, *arguments)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tokens": -1}, "tokens"),
        ({"tokens": None}, "tokens"),
        ({"counts": [10**7]}, "counts"),
        ({"prices": {"h100": -2}}, "prices"),
        ({"deadline": "2001-01-01"}, "deadline"),
        ({"gpus": ["h999"]}, "gpu"),
        ({"gpus": ["h100\n"]}, "gpus"),
        ({"model": "llama-9"}, "model"),
        ({"sequence_length": 4_000_000}, "sequence_length"),
        ({"measurements": [{"gpu": "h100", "gpus": 8}]}, "measurements"),
    ],
)
def test_a_bad_request_is_422_with_the_field(client: TestClient, change: dict[str, object], field: str) -> None:
    body: dict[str, object] = {"model": "llama-3.1-8b", "tokens": 3e11, "gpus": ["h100"], "counts": [8]}
    response = client.post("/v1/plans", json=body | change)
    assert response.status_code == 422 and field in response.text


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"workload": {"optimizer": "muon"}}, "workload.optimizer (muon) is not planned"),
        ({"space": {"backends": ["ddp"]}}, "space (given) is not read by plans"),
    ],
)
def test_a_study_that_a_plan_does_not_describe_is_rejected(tmp_path: Path, part: dict[str, object], words: str) -> None:
    study = tmp_path / "study.json"
    workload = {"sequence_length": 64, "global_batch": 16}
    merged = {
        "workload": workload | dict(part.get("workload", {})),
        **{k: v for k, v in part.items() if k != "workload"},
    }  # type: ignore[call-overload]
    study.write_text(json.dumps({"model": "llama-tiny", "cluster": "local", **merged}))
    with pytest.raises(InputError) as caught:
        plan(str(study), *RUN[1:])
    assert words in str(caught.value)


def test_epochs_over_a_file_of_lengths_count_its_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lengths.jsonl"
    file.write_text("100\n" * 30 + "2000\n" * 10)
    run = ("llama-3.1-8b", "--gpus", "h100", "--counts", "8", "--seq-len", "2048", "--json")
    plan(*run, "--data", str(file), "--epochs", "3")
    printed = json.loads(capsys.readouterr().out)
    assert printed["tokens"] == pytest.approx(3 * (30 * 100 + 10 * 2000))
    assert printed["notes"][0].startswith("69,000 tokens: 3 epochs of 40 samples with a mean of 575 tokens, packed")
    plan(*run, "--tokens", "69000")
    stated = json.loads(capsys.readouterr().out)
    assert stated["rows"] == printed["rows"]
    plan(*run, "--data", str(file), "--epochs", "1")
    assert json.loads(capsys.readouterr().out)["notes"][0].startswith("23,000 tokens: 1 epoch of 40 samples")
    with pytest.raises(
        InputError, match=r"data \(2000 tokens in its longest sample\) exceeds the sequence length \(1024\)"
    ):
        plan(*run, "--data", str(file), "--epochs", "3", "--seq-len", "1024")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), r"--tokens \(missing\) must say"),
        (("--epochs", "3"), r"--epochs \(3\) needs the lengths"),
        (("--data", "FILE"), "needs the number of epochs"),
        (("--data", "FILE", "--epochs", "0"), r"--epochs \(0\) must be above 0"),
        (("--data", "FILE", "--epochs", "-1"), r"--epochs \(-1\) must be above 0"),
        (("--data", "FILE", "--epochs", "nan"), r"--epochs \(nan\) must be above 0"),
        (("--data", "FILE", "--epochs", "3", "--tokens", "3e9"), r"--tokens \(3e\+09\) and --data with --epochs"),
        (("--data", "none.jsonl", "--epochs", "3"), r"data \(none.jsonl\) cannot be read"),
    ],
)
def test_tokens_are_stated_once(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "lengths.jsonl").write_text("100\n")
    stated = [str(tmp_path / "lengths.jsonl") if argument == "FILE" else argument for argument in arguments]
    with pytest.raises(InputError, match=words):
        plan("llama-3.1-8b", "--gpus", "h100", "--counts", "8", *stated)


def test_prices_and_measurements_are_read_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prices.json").write_text('{"h100": 3, "h200": 4}')
    config = {"strategy": {"kind": "fsdp2", "dp_shard": 8}, "micro_batch": 2, "activation_checkpointing": "full"}
    measured = {"gpu": "h100", "gpus": 8, "config": config, "gradient_accumulation": 8, "tokens_per_s_per_gpu": 6000}
    (tmp_path / "measured.json").write_text(json.dumps([measured]))
    files = ("--prices", str(tmp_path / "prices.json"), "--measured", str(tmp_path / "measured.json"))
    plan(*RUN, *files, "--price", "h100=2", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["evidence"] for row in rows if row["gpu"] == "h100"} == {"projected"}
    costs = {row["gpu"]: row["cost"]["expected"] / row["gpu_hours"]["expected"] for row in rows}
    assert costs == pytest.approx({"h100": 2, "h200": 4})
    # The price on the command line, however it spells the kind.
    plan(*RUN, *files, "--price", "H100=3", "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["cost"]["expected"] / row["gpu_hours"]["expected"] for row in rows if row["gpu"] == "h100"} == {3}
    with pytest.raises(InputError, match=r"--price \('h100=3'\) is a second price of h100"):
        plan(*RUN, "--price", "h100=2,h100=3")
    for content, words in (
        ("[1]", "must be a JSON object of numbers"),
        (f'{{"h100": 1{"0" * 400}}}', "too large for a price"),
    ):
        (tmp_path / "prices.json").write_text(content)
        with pytest.raises(InputError, match=words):
            plan(*RUN, *files)


def test_a_file_may_hold_prices_of_other_kinds_and_a_missing_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prices.json"

    def costs(*arguments: str) -> tuple[dict[str, float | None], list[str]]:
        plan(*RUN, "--prices", str(file), *arguments, "--json")
        answer = json.loads(capsys.readouterr().out)
        rows = {
            row["gpu"]: row["cost"] and row["cost"]["expected"] / row["gpu_hours"]["expected"] for row in answer["rows"]
        }
        return rows, [note for note in answer["notes"] if "--prices" in note]

    file.write_text('{"b200": 5, "own-gpu": 9, "H100-SXM5-80GB": 3, "H200": 4, "t4": -1}')
    assert costs() == ({"h100": pytest.approx(3), "h200": pytest.approx(4)}, [])
    file.write_text('{"b200": 5, "h200": 4}')
    assert costs() == ({"h100": None, "h200": pytest.approx(4)}, [f"--prices ({file}) has no price of h100"])
    assert costs("--price", "h100=2") == ({"h100": pytest.approx(2), "h200": pytest.approx(4)}, [])
    file.write_text('{"H200": 5, "h200": 4}')
    with pytest.raises(InputError, match="has several prices of h200"):
        costs()


def test_a_range_doubles_and_a_list_is_taken_as_it_is() -> None:
    assert read_counts("8..100") == (8, 16, 32, 64) and read_counts("8, 24,8") == (8, 24)
    with pytest.raises(InputError, match="must be a number, or a range"):
        read_counts("８..64")


def test_the_command_needs_neither_torch_nor_a_database() -> None:
    code = (
        "import sys\nfrom shardtune.service.cli.commands.app import app\n"
        f"app(['plan', *{RUN!r}, '--json'], standalone_mode=False)\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'fastapi', 'sqlalchemy')))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
