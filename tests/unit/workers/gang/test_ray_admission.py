"""Rejection of Ray clusters, without Ray; its daemons are in tests/lab."""

import socket

import pytest

from shardtune.workers.gang.ray_admission import require_answer, require_closed, require_token


def test_a_cluster_that_does_not_answer_is_named_with_what_to_do() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"ray_address \({address}\) cannot be reached from .*ray start --head"):
            require_answer(address)


@pytest.mark.parametrize("address", ["auto", "ray://head:10001", "local"])
def test_what_is_no_address_is_left_to_ray(address: str) -> None:
    require_answer(address)


def test_without_a_token_no_cluster_is_joined() -> None:
    with pytest.raises(ValueError, match=r"RAY_AUTH_MODE \(not set\) must be token"):
        require_token({})


def test_a_head_that_says_nothing_is_bad_input_not_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"ray_address \({address}\) did not say within 0.01 s whether"):
            require_closed(address, patience_s=0.01)
