"""Rules for the text of an API key, whatever it is read from. No error of these shows the text."""

import re

MAX_KEY_BYTES = 4096
"""Maximum number of bytes that are read as an API key."""

# Secrets as the service issues them (service.access.manage_keys): the prefix and 32 random bytes.
_ISSUED = re.compile(r"shardtune_[\w-]{43}", re.ASCII)


def require_key(key: str, source: str) -> None:
    """Reject a key with characters that cannot be sent in an HTTP header. The HTTP client would reject it, too, but its
    error would show the key.

    Raises:
        ValueError: it names the source and does not show the text.
    """
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(
            f"{source} must hold one key and nothing else: no second line, no space and no letter beyond ASCII; write the "
            "key alone into it"
        )


def contains_key(text: str) -> bool:
    """Whether a text that should be something else, such as a path, contains a key that a service has issued."""
    return _ISSUED.search(text) is not None
