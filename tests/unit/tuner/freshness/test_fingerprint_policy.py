"""Differences between fingerprints that count, and stale recommendations."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shardtune.api_schemas.machines.hardware import FIRST_FIELDS, Fingerprint, banded
from shardtune.tuner.freshness.fingerprints import POLICY, changes, stale_fields
from shardtune.tuner.freshness.staleness import Machine, StoredFreshness, assess, update_marks
from tests.support.service.simulated_worker import FINGERPRINT

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEBOUNCE = timedelta(minutes=5)
GPUS = FINGERPRINT.model_copy(
    update={
        "device": "cuda",
        "gpu": "NVIDIA H100",
        "gpu_count": 8,
        "driver": "550.54.14",
        "nccl": "2.27.3",
        "kernel": "6.1.0-18-amd64",
        "gpu_links": "28×NV18",
        "nics": "8×400 Gb/s InfiniBand",
        "intra_node_gb_per_s": banded(360),
        "inter_node_gb_per_s": banded(45),
        "sm_clock_mhz": 1980,
        "host_memory_gib": 2000.0,
    }
)


def after(**fields):
    return GPUS.model_copy(update=fields)


def effects(now, nodes=1, was=GPUS):
    return {change.field: change.effect for change in changes(was, now, nodes)}


def test_every_field_has_a_policy():
    assert set(POLICY) == set(Fingerprint.model_fields) - {"version", "overridden"}


@pytest.mark.parametrize(
    ("field", "value", "effect"),
    [
        ("driver", "560.1", "stale"),
        ("nccl", "2.28.0", "stale"),
        ("gpu_links", "28×PHB", "stale"),
        ("sm_clock_mhz", 1200, "stale"),
        ("sm_clock_mhz", 1979, "confidence"),
        ("kernel", "6.1.0-21-amd64", "confidence"),
        ("kernel", "6.6.1", "stale"),
        ("python", "3.11.9", "confidence"),
        ("python", "3.12.1", "stale"),
        ("host_memory_gib", 1990.0, None),
        ("host_memory_gib", 1900.0, "confidence"),
        ("host_memory_gib", 1000.0, "stale"),
        ("cpu_count", 4, "confidence"),
        ("intra_node_gb_per_s", banded(390), None),
        ("intra_node_gb_per_s", banded(250), "stale"),
        ("driver", None, None),
    ],
)
def test_effect_of_one_change(field, value, effect):
    assert effects(after(**{field: value})) == ({field: effect} if effect else {})


def test_the_network_counts_only_for_trials_that_use_it():
    slower = after(nics="8×200 Gb/s InfiniBand", inter_node_gb_per_s=banded(22))
    assert set(effects(slower).values()) == {"confidence"}
    assert stale_fields(GPUS, slower, nodes=2) == ("nics", "inter_node_gb_per_s")


def test_the_number_of_cores_is_what_cpu_ranks_run_on():
    assert stale_fields(FINGERPRINT, FINGERPRINT.model_copy(update={"cpu_count": 4})) == ("cpu_count",)


@pytest.mark.parametrize("start", [0.7, 3.0, 17.3, 45.0, 312.0])
def test_noise_in_a_bandwidth_is_no_change_and_a_fifth_is(start):
    def moved(factor):
        was, now = (after(intra_node_gb_per_s=banded(value)) for value in (start, start * factor))
        return bool(changes(was, now))

    assert not any(moved(1 + percent / 100) for percent in range(-9, 10))
    assert moved(1.25) and moved(0.75)


def test_what_was_unknown_before_is_no_change():
    assert changes(GPUS.first_version(), GPUS) == () == changes(GPUS, GPUS.first_version())


def test_a_stored_fingerprint_of_the_first_version_reads_and_keeps_its_key():
    stored = {
        "version": 1, "device": "cpu", "gpu": "cpu", "gpu_count": 0, "gpu_memory_gib": None, "driver": None,
        "cuda": None, "nccl": None, "torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.23.0",
        "python": "3.11.2", "kernel": "6.1", "cpu": "simulated", "cpu_count": 2, "host_memory_gib": 16.0,
    }  # fmt: skip
    fingerprint = Fingerprint.model_validate(stored)
    assert fingerprint.content_key() == "3b9b6b7954bbdb939d27c740a532ea63"
    assert Fingerprint.model_validate(fingerprint.model_dump(mode="json")).content_key() == fingerprint.content_key()
    assert tuple(stored) == FIRST_FIELDS and fingerprint.power_limit_w is None
    assert FINGERPRINT.content_key() != fingerprint.content_key()


def test_a_fingerprint_of_the_second_version_keeps_its_key_and_compares_with_the_third():
    second = GPUS.model_copy(update={"version": 2, "native_dtypes": None})
    assert second.content_key() == "292ee0236a805f54bc8e2d6be8445d2d"
    assert changes(second, GPUS) == () == changes(GPUS, second)
    emulating = after(native_dtypes="float32")
    assert effects(emulating) == {"native_dtypes": "stale"}


def test_a_fingerprint_of_the_third_version_keeps_its_key_and_compares_with_the_fourth():
    third = GPUS.model_copy(update={"version": 3, "environment": None})
    assert third.content_key() == "493f6852db9ea8aaf61dd576dcfe6852"
    assert changes(third, after(environment=("NCCL_ALGO=Ring",))) == ()


def test_each_variable_of_the_environment_is_a_field_of_its_own():
    was = after(environment=("MALLOC_ARENA_MAX=2", "NCCL_ALGO=Ring", "NCCL_PROTO=LL"))
    now = after(environment=("NCCL_ALGO=Tree", "NCCL_PROTO=LL", "PYTORCH_ALLOC_CONF=expandable_segments:True"))
    actual = {change.field: (change.was, change.now, change.effect) for change in changes(was, now)}
    assert actual == {
        "environment.MALLOC_ARENA_MAX": ("2", "unset", "confidence"),
        "environment.NCCL_ALGO": ("Ring", "Tree", "stale"),
        "environment.PYTORCH_ALLOC_CONF": ("unset", "expandable_segments:True", "stale"),
    }
    assert assess(was, 1, [machine(now)]).stale_fields == ("environment.NCCL_ALGO", "environment.PYTORCH_ALLOC_CONF")


def test_with_cpu_ranks_their_own_variables_make_stale():
    now = FINGERPRINT.model_copy(update={"environment": ("MALLOC_ARENA_MAX=2", "NCCL_ALGO=Tree")})
    assert effects(now, was=FINGERPRINT) == {
        "environment.MALLOC_ARENA_MAX": "stale",
        "environment.NCCL_ALGO": "confidence",
    }


def machine(fingerprint=GPUS, minutes=-60.0, is_ready=True):
    return Machine(fingerprint, NOON + timedelta(minutes=minutes), is_ready)


NEW = after(driver="560")


def test_stale_when_the_last_machine_has_changed():
    rolling = [machine(NEW), machine(NEW), machine()]
    assert assess(GPUS, 1, rolling).stale_fields == ()
    assert assess(GPUS, 1, [machine(NEW), machine(NEW, minutes=-10)]).stale_fields == ("driver",)


def test_a_machine_that_is_down_may_come_back_as_it_was():
    assert assess(GPUS, 1, [machine(NEW), machine(is_ready=False)]).stale_fields == ()
    assert assess(GPUS, 1, [machine(NEW, is_ready=False)]) is None
    assert assess(GPUS, 1, []) is None


def test_different_changes_of_a_fleet_are_all_named_and_the_newest_value_counts():
    actual_assess = assess(GPUS, 1, [machine(NEW, -9), machine(NEW, -2), machine(after(nccl="2.28"), -5)])
    assert actual_assess.stale_fields == ("driver", "nccl")
    assert actual_assess.changed_at == NOON - timedelta(minutes=5), "the driver was new before, on another machine"


def marks_over_time(*steps, marks=StoredFreshness(), is_asked=True):
    """Marks after each step of (minutes, machines)."""
    for minutes, machines in steps:
        ranking_state = assess(GPUS, 1, machines)
        marks = update_marks(marks, ranking_state, is_asked, NOON + timedelta(minutes=minutes), DEBOUNCE)
        yield marks


def test_a_change_is_marked_at_once_and_announced_once_after_the_debounce():
    early, late, later = marks_over_time(*((t, [machine(NEW, 0)]) for t in (0, 5, 50)))
    assert (early.freshness, early.changed_fields, early.announced_at) == ("stale", ("driver",), None)
    assert late.announced_at == NOON + DEBOUNCE and late.announced_for == ("driver=560",)
    assert later == late


def test_back_within_the_debounce_is_no_event():
    *_, last = marks_over_time((0, [machine(NEW, 0)]), (4, [machine(GPUS, 4)]), (60, [machine(GPUS, 4)]))
    assert last == StoredFreshness()


def test_a_second_change_is_waited_for_and_after_the_announcement_told_again():
    newer = after(driver="570")
    first, second, third = marks_over_time(
        (0, [machine(NEW, 0)]), (5, [machine(newer, 4)]), (9, [machine(newer, 4)])
    )  # fmt: skip
    assert (first.announced_at, second.announced_at) == (None, None) and third.announced_for == ("driver=570",)
    again, reported = marks_over_time((20, [machine(NEW, 20)]), (25, [machine(NEW, 20)]), marks=third)
    assert again.announced_at == third.announced_at and reported.announced_at == NOON + timedelta(minutes=25)


def test_an_older_answer_is_marked_and_not_announced():
    *_, last = marks_over_time((0, [machine(NEW, 0)]), (60, [machine(NEW, 0)]), is_asked=False)
    assert (last.freshness, last.announced_at) == ("stale", None)


def test_a_patch_of_the_kernel_lowers_the_confidence_only():
    (actual,) = marks_over_time((0, [machine(after(kernel="6.1.0-21-amd64"), 0)]))
    assert actual == StoredFreshness(changed_fields=("kernel",))


def test_the_page_about_fingerprints_has_every_field_of_the_policy():
    page = (Path(__file__).parents[4] / "docs/reference/fingerprints.md").read_text()
    named = {word for line in page.splitlines() if line.startswith("| `") for word in re.findall(r"`(\w+)`", line)}
    assert set(POLICY) <= named
