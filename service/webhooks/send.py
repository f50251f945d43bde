"""Send one signed message, bounded in time and size."""

import asyncio
import ssl
from dataclasses import dataclass
from datetime import datetime
from functools import cache

import httpx

from shardtune.service.process.context import Context
from shardtune.service.process.dns_resolver import LookUps
from shardtune.service.webhooks import addresses, secrets

_TIMEOUT_S = 15.0
_LONGEST_ANSWER = 64 * 1024


@dataclass(frozen=True)
class Message:
    """What goes where."""

    delivery_id: str
    webhook_id: str
    project_id: str | None
    url: str
    secret_versions: tuple[int, ...]
    body: str
    tries: int


@dataclass(frozen=True)
class ReceiverAnswer:
    """What became of a try."""

    status: int | None
    error: str | None

    @property
    def is_success(self) -> bool:
        """The receiver has it."""
        return self.error is None


@dataclass(frozen=True)
class Reach:
    """How receivers are reached."""

    look_ups: LookUps
    allow_private: bool
    tls: ssl.SSLContext
    """Whose certificates count."""


@cache
def public_tls() -> ssl.SSLContext:
    """The certificates that httpx trusts; reading them takes as long as sending does."""
    return httpx.create_ssl_context(trust_env=False)


def reach_of(context: Context) -> Reach:
    """As the operator has set it."""
    return Reach(context.look_ups, context.settings.webhook_allow_private, public_tls())


async def send(message: Message, key: bytes, now: datetime, reach: Reach) -> ReceiverAnswer:
    """POST a message. Redirects are not followed: they could lead anywhere. Never raises for the receiver's faults."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await _post(message, key, now, reach)
    except TimeoutError:
        return ReceiverAnswer(None, f"no answer within {_TIMEOUT_S:g} s")
    except addresses.AddressRejected as error:
        return ReceiverAnswer(None, str(error))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return ReceiverAnswer(None, _words(error))


def _words(error: BaseException) -> str:
    """What went wrong, by its kind: what the error itself says may name addresses of the operator's network."""
    kind, cause = type(error).__name__, error.__cause__ or error.__context__
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"{kind}: the certificate does not count: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return f"{kind}: the receiver cannot be reached, or does not speak HTTP"


async def _post(message: Message, key: bytes, now: datetime, reach: Reach) -> ReceiverAnswer:
    url = httpx.URL(message.url)
    address = await addresses.resolve(url, reach.allow_private, reach.look_ups)
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
    # The certificate is checked against the name, the connection goes to the address.
    async with httpx.AsyncClient(
        verify=reach.tls, trust_env=False, follow_redirects=False, timeout=_TIMEOUT_S
    ) as client:
        request = client.build_request(
            "POST",
            url.copy_with(host=address),
            headers=headers,
            content=message.body,
            extensions={"sni_hostname": url.host},
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
    seen = 0
    async for chunk in response.aiter_raw():
        seen += len(chunk)
        if seen > _LONGEST_ANSWER:
            return
