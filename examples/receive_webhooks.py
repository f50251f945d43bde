"""Receive Shardtune's webhooks and print them: `python receive_webhooks.py PORT`, with the secret in SHARDTUNE_WEBHOOK_SECRET.

The standard library is enough for the check of the signature (standardwebhooks.com); only `is_genuine` is of interest.
"""

import base64
import hashlib
import hmac
import os
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

TOLERANCE_S = 300
SECRET = base64.b64decode(os.environ["SHARDTUNE_WEBHOOK_SECRET"].removeprefix("whsec_"))
had: set[str] = set()
"""Ids of messages that came before; a real receiver keeps them for the three days of retries."""


def is_genuine(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the service sent it, lately."""
    message_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > TOLERANCE_S:
        return False
    signed = hmac.new(SECRET, f"{message_id}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    wanted = "v1," + base64.b64encode(signed).decode()
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(wanted.encode(), one.encode()) for one in given)


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to what is genuine, also when it comes again, and 400 to the rest."""

    timeout = 10

    def do_POST(self) -> None:
        """Check, answer, and print what is new."""
        body = self.rfile.read(min(int(self.headers.get("content-length", "0")), 1 << 20))
        genuine = is_genuine(self.headers, body)
        self.send_response(204 if genuine else 400)
        self.end_headers()
        if genuine and self.headers["webhook-id"] not in had:
            had.add(self.headers["webhook-id"])
            print(body.decode(), flush=True)

    def log_message(self, *_: object) -> None:
        """Print messages only."""


HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
