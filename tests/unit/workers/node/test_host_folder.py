"""The folder of a node agent in its host's temporary folder is this user's alone."""

import os

import pytest

from shardtune.workers.gang.messages import Begin
from shardtune.workers.launchers.fork_server import ForkServerLauncher
from shardtune.workers.node.serve import host_settings
from tests.support.processes.other_user import OTHER_UID, acting, place_of_all_users
from tests.support.workers.worker_fakes import FAKE_HOST

OURS = f"shardtune-{os.geteuid()}"
BEGIN = Begin(settings={}, lease_s=8)


@pytest.fixture
def everybody(monkeypatch):
    with place_of_all_users() as path:
        monkeypatch.setattr("tempfile.tempdir", str(path))
        yield path


def test_a_host_s_folder_is_closed_to_other_users(everybody):
    assert host_settings(BEGIN).work_dir == everybody / OURS / "node"
    assert (everybody / OURS).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_another_user_made_first_is_not_taken(everybody):
    with (
        acting(lambda: (everybody / OURS).mkdir(mode=0o777)),
        pytest.raises(ValueError, match=rf"folder of this host \(TMPDIR\) .* belongs to uid {OTHER_UID}"),
    ):
        host_settings(BEGIN)


def test_a_log_that_another_user_planted_as_a_link_empties_no_file_of_this_user(everybody, tmp_path):
    keys = tmp_path / "authorized_keys"
    keys.write_text("ssh-ed25519 AAAA")

    def plant():
        folder = everybody / OURS / "node"
        folder.mkdir(parents=True)
        (folder / "host-0123.log").symlink_to(keys)

    with acting(plant), pytest.raises(ValueError, match=f"belongs to uid {OTHER_UID}"):
        log_path = everybody / OURS / "node" / "host-0123.log"
        ForkServerLauncher({}, "0123", log_path, command=FAKE_HOST).prepare(lambda: True)
    assert keys.read_text() == "ssh-ed25519 AAAA"
