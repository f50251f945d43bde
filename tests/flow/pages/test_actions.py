"""A key may do through the pages exactly what it may do over the API: one table serves both."""

import re

import pytest

from shardtune.api_schemas.access.keys import Scope
from shardtune.service.access.actions import SCOPES, Action
from tests.flow.helpers.route_table import Address, addresses
from tests.support.service.local_client import local_client
from tests.support.service.page_reader import HTML, log_in
from tests.support.service.scenarios import bearer, make_key

BY_THEMSELVES = {"/login", "/logout"}
"""Forms of whoever has no session yet, or ends it."""


def filled(path: str) -> str:
    """Path with unknown names in place of every id."""
    return re.sub(r"\{\w+\}", lambda name: "approve" if name[0] == "{action}" else "nothing", path)


def is_permitted(address: Address, *scopes: Scope) -> bool:
    return all(set(scopes) & set(SCOPES[action]) for action in address.actions)


def test_whatever_changes_something_is_in_the_table(quick_client):
    silent = [a for a in addresses(quick_client.app) if a.is_unsafe and not a.actions and a.path not in BY_THEMSELVES]
    assert silent == []


def test_decisions_need_an_administrator_on_both_ways(quick_client):
    deciding = [a for a in addresses(quick_client.app) if Action.DECIDE_ON_BEST in a.actions]
    assert {a.is_page for a in deciding} == {True, False}
    assert SCOPES[Action.DECIDE_ON_BEST] == (Scope.ADMIN,)


@pytest.mark.parametrize("scope", Scope)
def test_every_form_and_route_goes_by_the_table(quick_client, scope):
    admin = bearer(make_key(quick_client, "admin"))
    unsafe = [a for a in addresses(quick_client.app) if a.is_unsafe and a.path not in BY_THEMSELVES]
    own = bearer(make_key(quick_client, scope, **admin))
    rejected = {a for a in unsafe if not a.is_page and _is_rejected(quick_client, a, headers=own)}
    # Nobody is let in to the pages without this scope.
    token = log_in(quick_client, make_key(quick_client, "studies:read", scope, **admin)["secret"])
    rejected |= {a for a in unsafe if a.is_page and _is_rejected(quick_client, a, headers=HTML, data=token)}
    assert rejected == {a for a in unsafe if not is_permitted(a, scope, *([Scope.STUDIES_READ] if a.is_page else []))}
    assert any(a.is_page for a in unsafe)


def _is_rejected(client, address, **sent):
    answer = client.request(address.method, filled(address.path), follow_redirects=False, **sent)
    assert answer.status_code < 500, answer.text
    return answer.status_code == 403 and "scope" in answer.text


def test_a_key_for_metrics_reads_metrics_and_nothing_else(quick_client):
    admin = bearer(make_key(quick_client, "admin"))
    own = bearer(make_key(quick_client, "metrics:read", **admin))
    assert quick_client.get("/metrics", headers=own).status_code == 200
    guarded = {a for a in addresses(quick_client.app) if a.actions and not a.is_page and a.path != "/metrics"}
    assert guarded and guarded == {a for a in guarded if _is_rejected(quick_client, a, headers=own)}
    bound = make_key(quick_client, "metrics:read", project="default", **admin)
    assert quick_client.get("/metrics", headers=bearer(bound)).json()["code"] == "scope_missing"


def test_the_session_of_another_key_is_asked_for_its_own_scopes(quick_client):
    """Approving needs what the API asks for, whoever else is logged in."""
    created = make_key(quick_client, "admin")
    other = local_client(quick_client.app)
    log_in(quick_client, created["secret"])
    token = log_in(other, make_key(quick_client, "studies:read", "studies:write", **bearer(created))["secret"])
    form = other.post("/studies/nothing/recommendation/approve", data=token, headers=HTML)
    assert form.status_code == 403 and "scope admin" in form.text
