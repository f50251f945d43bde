"""Bodies with many lengths of samples: as many as the schema takes are read, and more are rejected with the field."""

import pytest

from shardtune.api_schemas.training.sample_lengths import MOST_ENTRIES, MOST_PAIRS
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

PAIRS = [[2 + number % 63, 1] for number in range(MOST_PAIRS)]
LENGTHS = [2 + number % 63 for number in range(MOST_ENTRIES)]


def study_of(client, lengths):
    SimulatedWorker(client).register()
    workload = SPEC["workload"] | {"data": {"lengths": lengths}}
    return client.post("/v1/studies", json=SPEC | {"workload": workload})


@pytest.mark.parametrize("lengths", [PAIRS, LENGTHS], ids=["pairs", "lengths"])
def test_a_request_takes_as_many_lengths_as_the_schema(quick_client, lengths):
    answer = study_of(quick_client, lengths)
    assert answer.status_code == 201, answer.text
    assert sum(count for _, count in answer.json()["spec"]["workload"]["data"]["lengths"]) == len(lengths)


@pytest.mark.parametrize("lengths", [[*PAIRS, [9, 1]], [*LENGTHS, 9]], ids=["pairs", "lengths"])
def test_more_lengths_are_rejected_with_field_and_remedy(quick_client, lengths):
    answer = study_of(quick_client, lengths)
    assert (
        answer.status_code == 422 and "count equal lengths into pairs" in answer.text and "data.lengths" in answer.text
    )


def test_a_body_that_is_not_even_read_names_the_field_and_the_remedy(quick_client):
    answer = study_of(quick_client, LENGTHS * 2)
    assert answer.status_code == 413 and "workload.data.lengths" in answer.text and "pairs" in answer.text
    other = quick_client.post("/v1/keys", json={"name": ["x"] * 60_000})
    assert other.status_code == 413 and "lengths" not in other.text
