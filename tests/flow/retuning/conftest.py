"""A service with a daily budget for retunes."""

import pytest

from shardtune.db.session import Database
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.flow.retuning.retuning_settings import A_DAY, QUIET
from tests.support.service.local_client import local_client
from tests.support.service.simulated_worker import SimulatedWorker


@pytest.fixture
def service(database_url, spare_app, clock):
    """A service whose fleet may use 200 GPU-seconds a day, with one recommendation and its worker."""
    settings = Settings(database_url=database_url, **QUIET, retune_gpu_seconds_per_day=A_DAY)
    spare_app.state.context = context = Context(Database(database_url), settings, clock)
    with local_client(spare_app) as client:
        clock.turn(86_400)
        yield client, context, SimulatedWorker(client).register()
