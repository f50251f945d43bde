"""Send one signed webhook message, within limits of time and size."""

import asyncio
import ssl
from dataclasses import dataclass
from datetime import datetime

import httpx

from shardtune.service.process.context import Context
from shardtune.service.process.dns_resolver import DnsResolver
from shardtune.service.process.public_addresses import AddressRejected, ascii_host, resolve_checked
from shardtune.service.process.public_tls import public_tls
from shardtune.service.webhooks import addresses, secrets

TEST = "webhook.test"
"""Type of a message that a person asks for to test a webhook; it is sent once."""
_TIMEOUT_S = 15.0
_MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True)
class Message:
    """Webhook message to send, with the receiver's address and the secrets that sign it."""

    delivery_id: str
    webhook_id: str
    project_id: str | None
    url: str
    secret_versions: tuple[int, ...]
    body: str
    tries: int


@dataclass(frozen=True)
class ReceiverAnswer:
    """Result of one attempt to deliver a webhook message."""

    status: int | None
    error: str | None

    @property
    def is_success(self) -> bool:
        """Whether the receiver accepted the message."""
        return self.error is None


@dataclass(frozen=True)
class DeliveryRules:
    """Rules and resources for sending messages to the receivers of webhooks: allowed addresses, timeouts and
    certificates.
    """

    look_ups: DnsResolver
    allow_private: bool
    tls: ssl.SSLContext
    """TLS context with the certificate authorities that are trusted when the service connects to a webhook's
    receiver.
    """


def delivery_rules(context: Context) -> DeliveryRules:
    """Return the rules for sending messages to the receivers of webhooks, as the operator has set them."""
    return DeliveryRules(context.dns_resolver, context.settings.webhook_allow_private, public_tls())


async def send(message: Message, key: bytes, now: datetime, rules: DeliveryRules) -> ReceiverAnswer:
    """Send a webhook message by POST and return the result. Failures of the receiver are returned, never raised."""
    # Redirects are not followed: they could lead to an address that was not checked.
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await _post(message, key, now, rules)
    except TimeoutError:
        return ReceiverAnswer(None, f"no answer within {_TIMEOUT_S:g} s")
    except AddressRejected as error:
        return ReceiverAnswer(None, str(error))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return ReceiverAnswer(None, _describe_error(error))


def _describe_error(error: BaseException) -> str:
    """Describe in words why a message could not be delivered, by the kind of exception."""
    # The error's own text may name addresses of the operator's network.
    kind, cause = type(error).__name__, error.__cause__ or error.__context__
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{kind}: the certificate is not valid: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return f"{kind}: the receiver cannot be reached, or does not speak HTTP"


async def _post(message: Message, key: bytes, now: datetime, reach: DeliveryRules) -> ReceiverAnswer:
    url = httpx.URL(message.url)
    address = await resolve_checked(url, reach.allow_private, reach.look_ups, addresses.REMEDY)
    headers = {
        "host": url.netloc.decode("ascii"),
        "content-type": "application/json",
        "user-agent": "shardtune-webhooks/1",
        "webhook-id": message.delivery_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": secrets.signature(
            key, message.webhook_id, message.secret_versions, message.delivery_id, now, message.body
        ),
    }
    # The certificate is checked against the name, while the connection goes to the checked address.
    async with httpx.AsyncClient(
        verify=reach.tls, trust_env=False, follow_redirects=False, timeout=_TIMEOUT_S
    ) as client:
        request = client.build_request(
            "POST",
            url.copy_with(host=address),
            headers=headers,
            content=message.body,
            extensions={"sni_hostname": ascii_host(url)},
        )
        response = await client.send(request, stream=True)
        try:
            await _drop_body(response)
        finally:
            await response.aclose()
    if response.is_success:
        return ReceiverAnswer(response.status_code, None)
    return ReceiverAnswer(response.status_code, f"the receiver answered {response.status_code}")


async def _drop_body(response: httpx.Response) -> None:
    # The answer's body is read so that the connection ends cleanly, but a receiver must not fill the memory.
    received_bytes = 0
    async for chunk in response.aiter_raw():
        received_bytes += len(chunk)
        if received_bytes > _MAX_ANSWER_BYTES:
            return
