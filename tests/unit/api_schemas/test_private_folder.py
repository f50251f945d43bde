"""A private folder is this user's alone, whatever another user of the machine has placed under its name."""

import os
import stat

import pytest

from shardtune.api_schemas.access import private_folder
from tests.support.processes.other_user import OTHER_UID, acting, place_of_all_users


@pytest.fixture
def everybody():
    with place_of_all_users() as path:
        yield path


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_closed_to_others_with_its_parents(tmp_path):
    made = private_folder.make(tmp_path / "a" / "b", "work_dir")
    assert [mode_of(made), mode_of(made.parent)] == [0o700, 0o700]


def test_a_folder_that_others_may_read_is_kept_where_a_person_named_it_only(tmp_path):
    (tmp_path / "work").mkdir(mode=0o755)
    assert private_folder.make(tmp_path / "work", "work_dir") == tmp_path / "work"
    with pytest.raises(ValueError, match=r"work_dir \(.*\) can be read by other users \(mode 0755\); `chmod 700"):
        private_folder.make(tmp_path / "work", "work_dir", is_shared_place=True)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_rejected_with_the_remedy(tmp_path, mode):
    (tmp_path / "work").mkdir()
    (tmp_path / "work").chmod(mode)
    with pytest.raises(ValueError, match=rf"work_dir \(.*\) can be written by other users \(mode {mode:04o}\)"):
        private_folder.make(tmp_path / "work", "work_dir")


def test_links_of_this_user_are_followed_and_what_is_missing_behind_them_is_made(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "work").symlink_to("disk/./new")
    assert private_folder.make(tmp_path / "work" / ".." / "x", "work_dir") == tmp_path / "disk" / "x"
    assert private_folder.make(tmp_path / "work" / "run", "work_dir") == tmp_path / "disk" / "new" / "run"


def test_a_file_or_a_loop_of_links_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ValueError, match="file is no folder"):
        private_folder.make(tmp_path / "file" / "x", "work_dir")
    with pytest.raises(ValueError, match="loop of symbolic links"):
        private_folder.make(tmp_path / "loop", "work_dir")


def test_a_folder_of_another_user_is_rejected_by_its_owner(everybody):
    with (
        acting(lambda: (everybody / "work").mkdir(mode=0o700)),
        pytest.raises(ValueError, match=rf"work_dir \(.*\): the folder .* belongs to uid {OTHER_UID}"),
    ):
        private_folder.make(everybody / "work", "work_dir")


def test_a_folder_within_another_user_s_is_rejected(everybody):
    """The other user could rename it away and put a folder of theirs in its place."""
    with acting(lambda: (everybody / "shardtune").mkdir(mode=0o755)), pytest.raises(ValueError, match="at will"):
        private_folder.make(everybody / "shardtune" / "work", "work_dir")


def test_a_link_that_another_user_planted_is_not_followed(everybody, tmp_path):
    victim = private_folder.make(tmp_path / "home", "home")
    with (
        acting(lambda: (everybody / "work").symlink_to(victim)),
        pytest.raises(ValueError, match=rf"the link .* belongs to uid {OTHER_UID}"),
    ):
        private_folder.make(everybody / "work" / "node", "work_dir")
    assert list(victim.iterdir()) == []


def test_a_folder_handed_over_by_its_owner_in_a_closed_place_is_rejected_too(tmp_path):
    (tmp_path / "work").mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(tmp_path / "work", OTHER_UID, OTHER_UID)
        with pytest.raises(ValueError, match=f"belongs to uid {OTHER_UID}, not to this user"):
            private_folder.make(tmp_path / "work", "work_dir")
