"""Leaf switches in plans and predictions: options, REST, and the words of an answer."""

import json

import pytest
from fastapi.testclient import TestClient

from shardtune.service.app import create_app
from shardtune.service.cli.commands.app import app as cli
from shardtune.service.cli.errors import InputError
from shardtune.service.settings import Settings
from tests.support.service.local_client import local_client

PLAN = ("plan", "llama-2-70b", "--tokens", "3e11", "--gpus", "h100", "--counts", "64,512", "--start", "2026-12-01")
PREDICT = ("predict", "llama-3.1-8b", "--cluster", "16x8xh100", "--global-batch", "1024", "--top", "3")
LEAVES = ("--nodes-per-leaf", "8", "--oversubscription", "4")
NOTE = "leaf switches of 8 nodes each, 4:1 oversubscribed: stated, not measured"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    cli(list(arguments), standalone_mode=False)
    return capsys.readouterr().out


def test_a_plan_with_leaf_switches_has_wider_bands_beyond_one_leaf(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    without, there = (json.loads(printed(capsys, *PLAN, *more, "--json")) for more in ((), LEAVES))
    # 64 GPUs are below one leaf switch, 512 below eight.
    assert there["rows"][0] == without["rows"][0]
    usual, wide = (plan["rows"][1]["tokens_per_s_per_gpu"] for plan in (without, there))
    assert wide["expected"] <= usual["expected"] and wide["low"] / wide["expected"] < usual["low"] / usual["expected"]
    assert sum(NOTE in note for note in there["notes"]) == 1 and not any("leaf" in note for note in without["notes"])
    body = {
        "model": "llama-2-70b", "tokens": 3e11, "gpus": ["h100"], "counts": [64, 512], "start": "2026-12-01",
        "nodes_per_leaf": 8, "oversubscription": 4,
    }  # fmt: skip
    response = local_client(create_app(Settings(database_url=sqlite_url))).post("/v1/plans", json=body)
    assert response.status_code == 200 and response.json() == there


def test_a_prediction_with_leaf_switches_says_so_and_its_bands_reach_further_down(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    without, there = (json.loads(printed(capsys, *PREDICT, *more, "--json")) for more in ((), LEAVES))
    assert (there["cluster"]["nodes_per_leaf"], there["cluster"]["oversubscription"]) == (8, 4.0)
    assert any(NOTE in note for note in there["notes"]) and not any("leaf" in note for note in without["notes"])
    for before, after in zip(without["predictions"], there["predictions"], strict=True):
        assert after["speed"]["tokens_per_s_per_gpu"] <= before["speed"]["tokens_per_s_per_gpu"]
        assert after["speed"]["low_tokens_per_s_per_gpu"] < before["speed"]["low_tokens_per_s_per_gpu"]
    body = {"model": "llama-3.1-8b", "cluster": there["cluster"], "global_batch": 1024, "top": 3}
    client: TestClient = local_client(create_app(Settings(database_url=sqlite_url)))
    response = client.post("/v1/predictions", json=body)
    assert response.status_code == 200 and response.json()["predictions"] == there["predictions"]


@pytest.mark.parametrize("command", [PLAN, PREDICT])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--oversubscription", "2"), r"oversubscription \(2\) needs nodes_per_leaf"),
        (("--nodes-per-leaf", "8", "--oversubscription", "0.5"), r"oversubscription \(0.5\): must be at least 1"),
        (("--nodes-per-leaf", "0"), r"nodes_per_leaf \(0\): must be at least 1"),
    ],
)
def test_wrong_leaf_switches_are_rejected_with_field_value_and_remedy(
    command: tuple[str, ...], arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        cli([*command, *arguments], standalone_mode=False)
