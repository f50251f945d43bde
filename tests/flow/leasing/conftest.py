"""A study and the lease of its first trial, for the `worker` of a test module."""

import pytest

from tests.support.service.simulated_worker import MODEL_SUMMARY, SPEC


@pytest.fixture
def study_id(client, worker):
    return client.post("/v1/studies", json=SPEC).json()["study_id"]


@pytest.fixture
def lease(worker, study_id):
    """The lease of the first trial."""
    worker.report(worker.lease(), MODEL_SUMMARY).raise_for_status()
    return worker.lease()
