"""Errors of a disk that takes no more data, whatever file was written."""

import errno

_NUMBERS = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EROFS])


def is_of_disk(error: BaseException) -> bool:
    """Whether an error says that a disk is full, beyond a quota or read-only."""
    return isinstance(error, OSError) and error.errno in _NUMBERS
