"""Memory of a run against its limits."""

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.api_schemas.trials.measurements import Memory
from shardtune.api_schemas.trials.objective import Objective
from shardtune.tuner.objective import over_limit_failure
from tests.support.values.tuner_inputs import cpu, measured


def test_memory_over_the_headroom_is_over_limit_and_never_an_oom():
    cluster, objective = cpu(memory_gib=1.0), Objective(memory_headroom=0.1)
    assert over_limit_failure(measured(1, memory_gib=0.9), cluster, objective) is None
    failure = over_limit_failure(measured(1, memory_gib=0.91), cluster, objective)
    assert failure is not None and failure.kind is FailureKind.OVER_LIMIT
    assert "0.91 GiB exceeds 0.90 GiB" in failure.message


def test_what_the_device_reports_counts_before_the_allocator():
    memory = Memory(peak_allocated_gib=0.5, peak_reserved_gib=0.6, device_used_gib=2.0)
    used = measured(1).model_copy(update={"memory": memory})
    assert "device memory in use of 2.00" in over_limit_failure(used, cpu(memory_gib=1.0), Objective()).message
