"""The page of plans shows the plan of `POST /v1/plans`, and says what is wrong with a form."""

import html
import json
import re

import pytest

from tests.support.service.page_reader import HTML, page, token

ASKED = {"model": "llama-3.1-8b", "tokens": 3e11, "gpus": ["h100", "h200"], "counts": [64, 128],
         "prices": {"h100": 2.1, "h200": 2.6}, "budget": 25000, "deadline": "2026-03-01"}  # fmt: skip
FORM = {"model": "llama-3.1-8b", "tokens": "3e11", "gpus": "h100, h200", "counts": "64..128",
        "prices": "h100=2.1,h200=2.6", "budget": "25000", "deadline": "2026-03-01"}  # fmt: skip


def test_the_page_and_the_route_have_one_plan(quick_client):
    plan = quick_client.post("/v1/plans", json=ASKED).json()
    answer = quick_client.get("/plans", params=FORM, headers=HTML)
    text = html.unescape(answer.text)
    assert answer.status_code == 200 and len(plan["rows"]) == 4
    for row in plan["rows"]:
        cost = row["cost"]
        assert f"{cost['expected']:,.0f}<br>" in text and f">{cost['low']:,.0f}–{cost['high']:,.0f}<" in text, row
        assert row["description"] in text and f"{row['gpus']} × {row['gpu']}" in text
    cheapest = plan["cheapest_in_time"]
    badges = text.split("<tbody>")[1].split("cheapest in time")[0]
    assert badges.rpartition("<strong>")[2].startswith(f"{cheapest['gpus']} × {cheapest['gpu']}")
    assert "fastest within the money" in text and "knee" in text
    assert 'id="chart-plan-days"' in text and 'id="chart-plan-money"' in text


def test_a_chosen_network_is_that_of_the_plan_and_of_its_address(quick_client):
    plan = quick_client.post("/v1/plans", json=ASKED | {"network": "tcp-100"}).json()
    text = html.unescape(quick_client.get("/plans", params=FORM | {"network": "tcp-100"}, headers=HTML).text)
    row = plan["rows"][-1]
    assert f"{row['cost']['expected']:,.0f}<br>" in text and "<option selected>tcp-100" in text
    assert "network=tcp-100" in text and "Network (tcp-100): 12.5 GB/s a node, unchecked" in text


def test_each_point_of_the_charts_names_the_currency_of_its_cost(quick_client):
    text = html.unescape(quick_client.get("/plans", params=FORM | {"currency": "EUR"}, headers=HTML).text)
    titles = re.findall(r"<title>(\d+ × [^<]*)</title>", text)
    assert len(titles) == 8 and all(re.search(r" days, [\d,]+ \([\d,]+–[\d,]+\) EUR$", title) for title in titles)


def test_leaf_switches_are_those_of_the_plan_and_of_its_address(quick_client):
    leaves = {"nodes_per_leaf": "2", "oversubscription": "4"}
    text = html.unescape(quick_client.get("/plans", params=FORM | leaves, headers=HTML).text)
    assert "nodes_per_leaf=2&oversubscription=4" in text
    assert "eaf switches of 2 nodes each, 4:1 oversubscribed: stated, not measured" in text
    wrong = html.unescape(quick_client.get("/plans", params=FORM | {"oversubscription": "4"}, headers=HTML).text)
    assert "oversubscription (4) needs nodes_per_leaf" in wrong


def test_the_operators_prices_are_used_where_a_request_has_none(quick_client, context, spare_app):
    settings = context.settings.model_copy(update={"gpu_prices": {"H100-SXM5-80GB": 2.5, "h200": 9.0}})
    object.__setattr__(context, "settings", settings)
    asked = {"model": "llama-3.1-8b", "tokens": 3e11, "gpus": ["h100", "h200", "b200"], "counts": [64]}
    plan = quick_client.post("/v1/plans", json=asked | {"prices": {"h200": 2.6}, "currency": "usd"}).json()
    prices = {
        row["gpu"]: row["cost"] and row["cost"]["expected"] / row["gpu_hours"]["expected"] for row in plan["rows"]
    }
    assert prices == {"h100": pytest.approx(2.5), "h200": pytest.approx(2.6), "b200": None}
    assert "price of h100: that of the service's setting gpu_prices, in USD" in plan["notes"]
    limited = quick_client.post("/v1/plans", json=asked | {"budget": 1e9}).json()
    assert limited["fastest_in_budget"]["gpu"] in ("h100", "h200"), "its price is the operator's"
    assert limited["currency"] == "USD" and "budget (1e+09): taken to be in USD" in limited["notes"][-1]
    unpriced = quick_client.post("/v1/plans", json=asked | {"gpus": ["b200"], "budget": 5})
    assert unpriced.status_code == 422 and "budget (5) needs prices" in unpriced.text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"counts": "many"}, "must be a number, or a range such as 8..1024"),
        ({"tokens": "all"}, "must be a number"),
        ({"tokens": "nan"}, "tokens"),
        ({"gpus": "h9000"}, "h9000"),
        ({"prices": "h100"}, "must read like h100=2.10"),
        ({"deadline": "soon"}, "must be a day such as 2027-03-01"),
        ({"deadline": "1999-01-01"}, "has passed: today is 2026"),
        ({"budget": "5", "prices": ""}, "needs prices"),
        ({"model": "nobody"}, "is not a preset"),
        ({"gpus_per_node": "7"}, "must be a multiple of gpus_per_node"),
    ],
)
def test_a_wrong_field_is_named_and_kept(quick_client, changes, says):
    answer = quick_client.post("/plans", data={"csrf": token(quick_client)} | FORM | changes, headers=HTML)
    assert answer.status_code == 422 and says in html.unescape(answer.text)
    (field, value), *_ = changes.items()
    assert field == "model" or f'name="{field}" value="{value}"' in answer.text


def test_a_pasted_model_is_planned_and_has_no_address(quick_client):
    config = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
              "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8,
              "max_position_embeddings": 4096}  # fmt: skip
    form = FORM | {"csrf": token(quick_client), "model": "custom", "config": json.dumps(config), "counts": "64"}
    answer = quick_client.post("/plans", data=form, headers=HTML)
    assert answer.status_code == 200 and "Address of this plan" not in answer.text
    assert "Address of this plan" in page(quick_client, "/plans?tokens=3e11&counts=64")


def test_the_address_of_a_plan_states_its_first_day(quick_client, clock):
    def result(address):
        return page(quick_client, f"/plans?{address}").partition('id="result"')[2]

    text = html.unescape(result("tokens=3e12&counts=64"))
    address = text.partition('<a href="/plans?')[2].partition('"')[0]
    assert f"start={clock().date()}" in address
    first = result(address)
    clock.turn(40 * 86_400)
    assert result(address) == first, "the same plan weeks later"


def test_the_address_of_a_plan_whose_deadline_has_passed_opens_the_form_with_the_error(quick_client, clock):
    text = html.unescape(page(quick_client, "/plans?tokens=3e12&counts=64&deadline=2026-12-01&gpus=h200"))
    address = text.partition('<a href="/plans?')[2].partition('"')[0]
    assert "deadline=2026-12-01" in address
    clock.turn(400 * 86_400)
    later = html.unescape(page(quick_client, f"/plans?{address}"))
    assert 'id="wrong-deadline">deadline (2026-12-01) has passed' in later and "<tbody>" not in later
    for name, value in (("tokens", "3e12"), ("counts", "64"), ("deadline", "2026-12-01"), ("gpus", "h200")):
        assert f'name="{name}" value="{value}"' in later, name


def test_the_form_alone_computes_nothing(quick_client):
    text = page(quick_client, "/plans")
    assert "choose “Plan”" in text and "<tbody>" not in text
    rejected = quick_client.post("/plans", data=FORM, headers=HTML)
    assert rejected.status_code == 403, "a form of another site"


def test_no_date_of_a_choice_is_broken_and_no_knee_is_claimed_beyond_the_plan(quick_client):
    """On a telephone `2026-12-` ended a line. With all numbers equally efficient, nothing is known beyond the last."""
    answer = quick_client.get("/plans", params=FORM, headers=HTML).text
    choices = answer.split('<dl class="facts">')[1].split("</dl>")[0]
    plain = re.sub(r'<span class="nowrap">[^<]*</span>', "", choices)
    assert not re.search(r"<d[dt]>[^<]*\d{4}-\d\d-\d\d", plain), plain
    assert "at the plan&#39;s largest number, or beyond" in choices
    assert "beyond it, GPU-hours grow by more than a tenth" not in choices
