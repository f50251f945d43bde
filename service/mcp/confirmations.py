"""Codes with which a user agrees to an estimate: one code belongs to one request, for half a day, and starts one study.

A code is `NONCE-TIME-PROOF`. The proof is keyed, so that only who holds the key can make a code. Nothing is stored: every
replica that holds the key can check a code. The service remembers the study of a code by its idempotency key.
"""

import hashlib
import hmac
import re
import secrets
import time

from shardtune.service.mcp.errors import ToolRejected

VALID_S = 12 * 3600
"""Seconds for which a confirmation code is valid. The service remembers an Idempotency-Key for longer, so that a
repeated code always returns the first study."""
_CODE = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})-[0-9a-f]{24}")
_PROOF_LENGTH = 24
_REMEDY = (
    "call without confirmation, show the estimate to the user, and repeat the same call with the code that it returns"
)


def issue(key: bytes, request: str, now_s: float | None = None) -> str:
    """Return a new confirmation code for a request to create a study; each cost estimate gets a different code."""
    moment = int(time.time() if now_s is None else now_s)
    return _code(key, request, secrets.token_hex(8), f"{moment:08x}")


def check(key: bytes, request: str, code: str, now_s: float | None = None) -> None:
    """Check that a confirmation code was issued for exactly this request, and is still valid.

    Raises:
        ToolRejected: the code belongs to another request, or is too old.
    """
    parts = _CODE.fullmatch(code)
    if parts is None or not hmac.compare_digest(code, _code(key, request, parts[1], parts[2])):
        raise ToolRejected(f"confirmation ({code[:100]}) does not belong to this request; {_REMEDY}")
    age_s = (time.time() if now_s is None else now_s) - int(parts[2], 16)
    if age_s > VALID_S:
        raise ToolRejected(
            f"confirmation ({code}) is {age_s / 3600:.0f} hours old and was valid for {VALID_S // 3600}; look for its study with "
            f"studies_list; for another study, {_REMEDY}"
        )


def idempotency_key(code: str) -> str:
    """Return the Idempotency-Key that is sent when a study is created with a confirmation code."""
    return f"mcp-{code}"


def _code(key: bytes, request: str, nonce: str, moment: str) -> str:
    text = f"{nonce} {moment} {request}"
    return f"{nonce}-{moment}-{hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:_PROOF_LENGTH]}"
