"""A projection is served for the leaf switches that its study's target states, or says which they are."""

import pytest

from tests.support.service.scenarios import THREE_BACKENDS, tune
from tests.support.service.target_comparisons import TARGET, THERE, target_question

LEAVES = {"nodes_per_leaf": 2, "oversubscription": 4.0}
SIZE = {"nodes": 4, "gpus_per_node": 2}


def answer_for(client, **stated):
    cluster = THERE.model_copy(update=stated).model_dump_json()
    return client.get("/v1/best", params=target_question(projections="true", cluster=cluster))


def test_a_projection_is_served_for_its_own_leaf_switches_and_named_where_a_request_states_none(quick_client):
    tune(quick_client, **(TARGET | THREE_BACKENDS | {"target": SIZE | LEAVES}))
    for stated in (LEAVES, {}):
        answer = answer_for(quick_client, **stated)
        assert answer.status_code == 200 and answer.json()["projection"]["cluster"]["nodes_per_leaf"] == 2
        reasons = answer.json()["confidence"]["reasons"]
        assert "projected for leaf switches of 2 nodes each, 4:1 oversubscribed, as stated" in reasons
    for other in (LEAVES | {"oversubscription": 2.0}, LEAVES | {"nodes_per_leaf": 1}, {"nodes_per_leaf": 2}):
        assert answer_for(quick_client, **other).status_code == 404, other


@pytest.mark.parametrize(("stated", "status"), [(LEAVES, 404), ({"nodes_per_leaf": 4, "oversubscription": 4.0}, 200)])
def test_a_projection_without_leaf_switches_is_served_where_those_of_a_request_limit_nothing(
    quick_client, stated, status
):
    tune(quick_client, **(TARGET | THREE_BACKENDS))
    answer = answer_for(quick_client, **stated)
    assert answer.status_code == status, answer.text
    assert status == 404 or not any("leaf switches" in reason for reason in answer.json()["confidence"]["reasons"])
