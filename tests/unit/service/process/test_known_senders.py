"""The queue of a request is that of its key's project, however the client writes the header."""

import pytest

from shardtune.service.process.known_senders import KnownSenders
from shardtune.service.process.principal import Principal


@pytest.mark.parametrize("header", [b"Bearer secret", b"bearer secret", b"BEARER  secret"])
def test_a_known_key_is_of_its_project(header: bytes) -> None:
    senders = KnownSenders()
    senders.remember("secret", Principal("key", project_id="team-a", key_id="key-1"))
    assert senders.sender_of({"headers": [(b"authorization", header)], "client": ("10.0.0.1", 1)}) == "project team-a"


@pytest.mark.parametrize("headers", [[], [(b"authorization", b"Bearer other")], [(b"authorization", b"secret")]])
def test_an_unknown_sender_is_its_address(headers: list[tuple[bytes, bytes]]) -> None:
    senders = KnownSenders()
    senders.remember("secret", Principal("key", project_id="team-a", key_id="key-1"))
    assert senders.sender_of({"headers": headers, "client": ("10.0.0.1", 1)}) == "address 10.0.0.1"
