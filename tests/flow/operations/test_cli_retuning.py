"""`shardtune schedules`, `retunes` and `fingerprints` against the real service on a socket."""

import time

import pytest

from tests.flow.helpers.retuning_lab import CHANGED
from tests.support.service.scenarios import best, tune
from tests.support.service.simulated_worker import FINGERPRINT

NIGHTLY = ("--name", "nightly", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin")


def cancel(run, retune_id, as_json=True):
    """Cancel a retune as a person does, once more where the service was just starting it."""
    deadline = time.monotonic() + 60
    while True:
        code, answer = run("retunes", "cancel", retune_id, as_json=as_json)
        if code == 0 or "is just being started" not in answer or time.monotonic() > deadline:
            return answer
        time.sleep(0.2)


def test_a_schedule_from_its_making_to_its_end(http, run):
    tune(http)
    key = best(http)["target_key"]
    code, created = run("schedules", "create", *NIGHTLY, "--target-key", key, "--window", "22:00-06:00")
    name = created["schedule_id"]
    assert (code, created["targets"]["target_keys"], created["windows"]) == (0, [key], ["22:00-06:00"])
    assert [row["schedule_id"] for row in run("schedules", "list")[1]["schedules"]] == [name]
    assert run("schedules", "pause", name)[1]["is_paused"] and not run("schedules", "resume", name)[1]["is_paused"]
    assert run("schedules", "run", name)[1]["last_ticks"][0]["kind"] == "manual"
    (requested,) = run("retunes", "list", "--schedule", name)[1]["retunes"]
    assert requested == run("retunes", "show", requested["retune_id"])[1] and requested["cause"] == "manual"
    assert cancel(run, requested["retune_id"])["outcome"] == "skipped"
    assert run("retunes", "list", "--state", "queued")[1]["retunes"] == []
    assert run("schedules", "delete", name)[0] == 0 and run("schedules", "list")[1]["schedules"] == []


def test_the_same_in_words(http, run):
    tune(http)
    assert run("schedules", "list", as_json=False) == (0, "no schedules\n")
    assert run("retunes", "list", as_json=False) == (0, "no retunes\n")
    text = run("schedules", "create", *NIGHTLY, as_json=False)[1]
    name = text.split()[0]
    assert "nightly" in text and "At 02:30" in text and "(Europe/Berlin)" in text
    drift = run("schedules", "create", "--name", "eyes", "--trigger", "drift", "--cron", "0 6 * * *", as_json=False)[1]
    assert "when a canary measures a slowdown; canaries: At 06:00" in drift
    assert "no tick yet" in run("schedules", "show", name, as_json=False)[1]
    run("schedules", "run", name)
    assert "by hand: requested 1 retune" in run("schedules", "show", name, as_json=False)[1]
    (requested,) = run("retunes", "list")[1]["retunes"]
    cancelled = cancel(run, requested["retune_id"], as_json=False)
    assert "requested by hand  skipped  0 GPU-s" in cancelled and "cancelled by a person" in cancelled
    assert "is deleted" in run("schedules", "delete", name, as_json=False)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("schedules", "create", "--name", "x"), "cron (None) is required"),
        (("schedules", "create", *NIGHTLY[:3], "61 2 * * *"), "cannot be read"),
        (("schedules", "create", *NIGHTLY, "--window", "night"), "22:00-06:00"),
        (("schedules", "show", "schedule-none"), "does not exist"),
        (("retunes", "cancel", "retune-none"), "does not exist"),
        (("fingerprints", "show", "0" * 32), "fingerprint"),
        (("fingerprints", "list", "--key-file", "missing"), "cannot be read"),
    ],
)
def test_what_is_rejected_says_what_to_do(http, run, arguments, words):
    code, text = run(*arguments, as_json=False)
    assert code == 2 and words in text and "Traceback" not in text, text


def test_fingerprints_and_what_depends_on_them(http, run):
    assert run("fingerprints", "list", as_json=False) == (0, "no worker has registered yet\n")
    tune(http)
    tune(http, fingerprint=CHANGED)
    newest, first = run("fingerprints", "list")[1]["fingerprints"]
    assert (newest["fingerprint"]["kernel"], first["fingerprint"]["kernel"]) == ("6.2", FINGERPRINT.kernel)
    assert [row["fingerprint_id"] for row in run("fingerprints", "list", "--current")[1]["fingerprints"]] == [
        newest["fingerprint_id"]
    ]
    actual = run("fingerprints", "show", first["fingerprint_id"])[1]
    assert [dependent["model"] for dependent in actual["dependents"]] == ["llama-tiny"]
    assert "kernel 6.1 → 6.2" in run("fingerprints", "list", "--worker", "sim", as_json=False)[1]
    assert "measured under it: llama-tiny" in run("fingerprints", "show", first["fingerprint_id"], as_json=False)[1]


@pytest.mark.parametrize(
    "command", [("schedules", "list"), ("retunes", "list"), ("fingerprints", "list"), ("studies", "list")]
)
def test_every_command_names_the_service_in_the_same_way(http, run, monkeypatch, command):
    monkeypatch.delenv("SHARDTUNE_SERVICE_URL")
    for option in ("--service", "--url"):
        assert run(*command, option, str(http.base_url))[0] == 0
    assert run(*command, "--url", "http://127.0.0.1:9", as_json=False)[0] == 4
