"""Private folders: made with mode 0700, or accepted only where no other user can have planted or change their content.

Every folder in which a worker, its ranks or the command line write goes through `make`, because the folder may lie in a
place such as /tmp, where other users of the machine create folders and links of any name.
"""

import contextlib
import os
import stat
from collections import deque
from pathlib import Path

_MAX_LINKS = 40
"""Maximum number of symbolic links in a path. The kernel gives up beyond the same number (path_resolution(7))."""


def of_this_user(parent: Path) -> Path:
    """Return the path of a folder that belongs to this user alone, inside a folder that several users share, such as
    /tmp. `make` creates it."""
    return parent / f"shardtune-{os.geteuid()}"


def make(path: Path, field: str, *, is_shared_place: bool = False) -> Path:
    """Make a folder that only this user can write, with its parents, and return its absolute path.

    A folder that exists must belong to this user and deny writing to others. With `is_shared_place`, for a folder whose
    name no person chose, it must deny reading, too. Links and folders on the path that lie in a folder where everyone
    can write must belong to this user or to root.

    Args:
        field: name of the setting that names the folder, for the error.

    Raises:
        ValueError: another user owns the folder, can write in it, or has placed a link or folder on the way to it.
    """
    resolved = _walk(path, field)
    status = resolved.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise ValueError(
            f"{field} ({path}) belongs to uid {status.st_uid}, not to this user (uid {os.geteuid()}); "
            "name a folder that does not exist yet, or one of this user's"
        )
    if mode & 0o022:
        raise ValueError(
            f"{field} ({path}) can be written by other users (mode {mode:04o}); see that all in it is this user's, then "
            f"`chmod 700 {path}`, or name a folder that does not exist yet"
        )
    if is_shared_place and mode & 0o077:
        raise ValueError(f"{field} ({path}) can be read by other users (mode {mode:04o}); `chmod 700 {path}`")
    return resolved


def _walk(path: Path, field: str) -> Path:
    """Follow a path component by component, create folders that are missing, and return the path with its links
    resolved."""
    here, rest, links = Path("/"), deque(path.absolute().parts[1:]), 0
    while rest:
        name = rest.popleft()
        child = here.parent if name == ".." else here / name
        status = _status_or_make(child)
        _require_trusted(child, status, here, path, field)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise ValueError(f"{field} ({path}) has a loop of symbolic links at {child}; remove them")
            # The link's own folder stays `here` for a relative target.
            target = child.readlink()
            rest.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
            here = Path("/") if target.is_absolute() else here
        elif stat.S_ISDIR(status.st_mode):
            here = child
        else:
            raise ValueError(f"{field} ({path}): {child} is no folder; name another folder, or remove it")
    return here


def _status_or_make(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except FileNotFoundError:
        # Whoever wins a race for the name: the status that follows tells whose it is.
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
        return path.lstat()


def _require_trusted(child: Path, status: os.stat_result, parent: Path, path: Path, field: str) -> None:
    """Reject a link or folder that another user has placed in a folder where everyone can write. The kernel's
    `protected_symlinks` does the same for links.

    A link or folder in a directory where not everyone can write is trusted, whoever owns it: the person who named the
    path chose that directory.
    """
    if status.st_uid in (os.geteuid(), 0) or not stat.S_IMODE(parent.stat().st_mode) & stat.S_IWOTH:
        return
    kind = "link" if stat.S_ISLNK(status.st_mode) else "folder"
    raise ValueError(
        f"{field} ({path}): the {kind} {child} belongs to uid {status.st_uid}, which can change it at will; "
        "have its owner or root remove it, or name another folder"
    )
