"""Receiver of Shardtune's webhooks that prints them: `python receive_webhooks.py PORT`, with the secret in
SHARDTUNE_WEBHOOK_SECRET.

The standard library is enough to check signatures (standardwebhooks.com). Copy `is_genuine` into your own receiver.
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
received_ids: set[str] = set()
"""Ids of messages received before; a real receiver keeps them for the three days of retries."""


def is_genuine(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the service sent the message, within the last minutes."""
    message_id, sent_at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > TOLERANCE_S:
        return False
    signed = hmac.new(SECRET, f"{message_id}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    expected = "v1," + base64.b64encode(signed).decode()
    signatures = headers.get("webhook-signature", "").split(" ")
    # Several signatures while a secret is rotated; compare_digest takes equal time wherever they differ.
    return any(hmac.compare_digest(expected.encode(), signature.encode()) for signature in signatures)


class Receiver(BaseHTTPRequestHandler):
    """Handler that answers 204 to genuine messages, also repeated ones, and 400 to others."""

    timeout = 10

    def do_POST(self) -> None:
        """Check and answer a message, and print it if it is new."""
        body = self.rfile.read(min(int(self.headers.get("content-length", "0")), 1 << 20))
        genuine = is_genuine(self.headers, body)
        self.send_response(204 if genuine else 400)
        self.end_headers()
        # A message may come again when its answer was lost: it is printed once.
        if genuine and self.headers["webhook-id"] not in received_ids:
            received_ids.add(self.headers["webhook-id"])
            print(body.decode(), flush=True)

    def log_message(self, *_: object) -> None:
        """Do nothing, so that only messages are printed."""


HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
