"""Codes of estimates: whose they are, how long they hold, and who can make one."""

import hashlib

import pytest

from shardtune.service.http.idempotent_requests import KEY_LIFETIME
from shardtune.service.mcp import confirmations
from shardtune.service.mcp.errors import ToolRejected

KEY, REQUEST = b"k" * 32, '{"budget": 600}'


def test_each_estimate_has_a_code_of_its_own():
    codes = {confirmations.issue(KEY, REQUEST, 1e9) for _ in range(50)}
    assert len(codes) == 50
    for code in codes:
        confirmations.check(KEY, REQUEST, code, 1e9)


def test_a_code_cannot_be_made_without_the_key():
    nonce, moment, _ = confirmations.issue(KEY, REQUEST, 1e9).split("-")
    made = hashlib.sha256(f"{nonce} {moment} {REQUEST}".encode()).hexdigest()[:24]
    for code in ("yes", "é", "", f"{nonce}-{moment}-{made}", confirmations.issue(b"other", REQUEST, 1e9)):
        with pytest.raises(ToolRejected, match="does not belong to this request; call without confirmation"):
            confirmations.check(KEY, REQUEST, code, 1e9)


def test_a_code_of_another_request_or_a_prolonged_one_is_rejected():
    code = confirmations.issue(KEY, REQUEST, 1e9)
    nonce, moment, proof = code.split("-")
    for request, sent in (('{"budget": 601}', code), (REQUEST, f"{nonce}-{int(moment, 16) + 9:08x}-{proof}")):
        with pytest.raises(ToolRejected, match="does not belong"):
            confirmations.check(KEY, request, sent, 1e9)


def test_a_code_ends_before_the_service_forgets_its_study():
    code = confirmations.issue(KEY, REQUEST, 1e9)
    confirmations.check(KEY, REQUEST, code, 1e9 + confirmations.VALID_S)
    with pytest.raises(ToolRejected, match=r"hours old and was valid for 12; look for its study with studies_list"):
        confirmations.check(KEY, REQUEST, code, 1e9 + confirmations.VALID_S + 1)
    assert KEY_LIFETIME.total_seconds() >= 2 * confirmations.VALID_S
