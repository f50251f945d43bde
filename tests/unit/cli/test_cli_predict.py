"""`shardtune predict` and `POST /v1/predictions` give the same table, and refuse the same mistakes."""

import json

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.cli.commands import app as cli
from service.cli.errors import InputError
from service.settings import Settings


def predict(*arguments: str) -> None:
    cli(["predict", *arguments], standalone_mode=False)


@pytest.fixture
def client(sqlite_url: str) -> TestClient:
    return TestClient(create_app(Settings(database_url=sqlite_url)))


def test_the_command_and_the_route_agree(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    predict("llama-2-7b", "--cluster", "8xh100", "--json")
    printed = json.loads(capsys.readouterr().out)
    answer = client.post("/v1/predictions", json={"model": "llama-2-7b", "cluster": "8xh100"})
    assert answer.json() == printed
    assert {one["memory"]["verdict"] for one in printed["predictions"]} <= {"fits", "tight", "does not fit"}


def test_the_text_says_that_nothing_was_measured_and_what_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    predict("llama-2-70b", "--cluster", "8xh100")
    shown = capsys.readouterr().out
    assert "Predicted, not measured" in shown and "does not fit by" in shown and "fits with:" in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["llama-2-7b", "--cluster", "8xh900"], "'h900'.*H100"),
        (["llama-9", "--cluster", "8xh100"], "'llama-9'.*llama-2-7b"),
        (["llama-2-7b", "--cluster", "eight"], "'eight'.*8xh100"),
        (["gpt2", "--cluster", "1xh100", "--seq-len", "4096"], "sequence_length.*1024"),
        (["llama-2-7b", "--cluster", "8xh100", "--recipe", "fp8"], "'fp8'.*bf16-mixed"),
    ],
)
def test_a_mistake_names_value_and_remedy(arguments: list[str], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        predict(*arguments)


@pytest.mark.parametrize(
    "body", [{"model": "llama-2-7b", "cluster": "8xh900"}, {"model": {"model_type": "llama"}, "cluster": "8xh100"}]
)
def test_the_route_answers_mistakes_with_422(client: TestClient, body: dict[str, object]) -> None:
    answer = client.post("/v1/predictions", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["errors"][0]["message"]
