"""Prices of a service's operator: kinds that the catalogue knows, and no two currencies in one plan."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shardtune.api_schemas.trials.plans import PlanRequest
from shardtune.service.cli.environment import read_settings
from shardtune.service.cli.errors import InputError
from shardtune.tuner.plans.operator_prices import with_operator_prices
from shardtune.tuner.plans.plan import plan

NOW = datetime(2026, 11, 25, tzinfo=UTC)
OWN = {"H100-SXM5-80GB": 2.5, "h200": 9.0, "mi300x": 3.0}


def request(**values: Any) -> PlanRequest:
    default = {"model": "llama-3.1-8b", "tokens": 3e11, "gpus": ["h100", "h200"], "counts": [64]}
    return PlanRequest.model_validate(default | values)


@pytest.mark.parametrize(
    ("values", "prices", "currency"),
    [
        ({}, {"h100": 2.5, "h200": 9.0}, "USD"),
        ({"currency": "usd"}, {"h100": 2.5, "h200": 9.0}, "usd"),
        ({"prices": {"h200": 2.6}, "currency": "USD"}, {"h100": 2.5, "h200": 2.6}, "USD"),
        ({"prices": {"h200": 2.6}}, {"h200": 2.6}, None),
        ({"prices": {"h200": 2.6}, "currency": "EUR"}, {"h200": 2.6}, "EUR"),
        ({"currency": "EUR"}, {}, "EUR"),
    ],
)
def test_a_plan_has_prices_of_one_currency(
    values: dict[str, Any], prices: dict[str, float], currency: str | None
) -> None:
    priced = with_operator_prices(request(**values), OWN, "USD")
    made = plan(priced.request, NOW)
    costs = {row.gpu: row.cost.expected / row.gpu_hours.expected for row in made.rows if row.cost is not None}
    assert costs == pytest.approx(prices)
    assert made.currency == currency


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prices": {"h200": 2.6}}, "the request's prices and budget have no stated currency; state currency USD"),
        (
            {"prices": {"h200": 2.6}, "currency": "EUR"},
            "the request's prices and budget are in EUR; state currency USD",
        ),
    ],
)
def test_a_price_that_is_left_out_is_noted(values: dict[str, Any], words: str) -> None:
    (note,) = with_operator_prices(request(**values), OWN, "USD").notes
    assert note.startswith("price of h100: the service's setting gpu_prices has one in USD, which is not used")
    assert words in note


def test_a_request_with_all_prices_gets_neither_price_nor_note() -> None:
    complete = request(prices={"h100": 2.0, "h200": 2.6})
    assert with_operator_prices(complete, OWN, "USD") == (complete, ())


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ('{"h1000": 2.1}', r"gpu_prices.h1000 \(2.1\) names no kind of GPU of the catalogue; did you mean .*H100"),
        ('{"a100": 2.1}', r"gpu_prices.a100 \(2.1\) .* it can be any of A100-SXM4-40GB, .* so name one of them"),
        (
            '{"h100": 2, "H100-SXM5-80GB": 3}',
            r"gpu_prices.H100-SXM5-80GB \(3\) is the same kind as h100; give its price",
        ),
        ('{"h100": 0}', "SHARDTUNE_GPU_PRICES.H100"),
    ],
)
def test_a_service_does_not_start_with_a_price_that_no_plan_would_use(
    monkeypatch: pytest.MonkeyPatch, prices: str, words: str
) -> None:
    monkeypatch.setenv("SHARDTUNE_GPU_PRICES", prices)
    with pytest.raises(InputError, match=words):
        read_settings()


@pytest.mark.parametrize("currency", ["[/]", "US D", "", "a long name", "\x1b"])
def test_a_currency_is_a_short_name(currency: str) -> None:
    with pytest.raises(ValueError, match="currency"):
        request(currency=currency)


def test_a_price_of_no_kind_of_the_plan_names_the_kind_that_was_meant() -> None:
    with pytest.raises(ValueError, match=r"prices \(h1000\) names no kind of gpus \(h100, h200\); did you mean h100\?"):
        request(prices={"h1000": 2.0})
