"""`shardtune serve --state-dir`: what `tune` left in its state directory, on pages and over the API."""

import shutil

import httpx

from shardtune.service.cli.local_stack import DATABASE_FILE
from shardtune.service.cli.processes import listening_socket
from tests.support.processes.preloaded_forks import Service


def test_studies_that_tune_kept_are_served_later(answered_sqlite, tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    shutil.copy(answered_sqlite(), state / DATABASE_FILE)
    listener = listening_socket("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    service = Service(listener, tmp_path / "log", {}, "--state-dir", str(state))
    try:
        with httpx.Client(base_url=address, trust_env=False, timeout=120) as client:
            # Whoever connects before it listens waits on the socket.
            (study,) = client.get("/v1/studies").json()["studies"]
            shown = client.get(f"/studies/{study['study_id']}", headers={"accept": "text/html"})
            assert study["state"] == "complete" and "Confirmed:" in shown.text
    finally:
        service.send_signal(15)
        service.wait(30)


def test_a_new_state_directory_is_made(tmp_path):
    state, log = tmp_path / "a" / "new", tmp_path / "log"
    listener = listening_socket("127.0.0.1", 0)
    service = Service(listener, log, {}, "--state-dir", str(state))
    try:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=address, trust_env=False, timeout=120) as client:
            assert client.get("/v1/studies").json()["studies"] == []
    finally:
        service.send_signal(15)
        service.wait(30)
    assert (state / DATABASE_FILE).exists() and state.stat().st_mode & 0o777 == 0o700
    assert "has no studies yet" in log.read_text()
