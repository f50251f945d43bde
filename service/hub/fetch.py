"""Read a file of a hub's repository, within limits of time, size and addresses: two requests at most for one file.

No token is ever sent: a service that used one would hand private models to every user. Redirects are followed to the
allowed hosts alone, and each connection goes to the address that was checked.
"""

import asyncio
import ssl
from dataclasses import dataclass

import httpx

from shardtune.api_schemas.training.hub_source import HubSource, is_commit
from shardtune.api_schemas.training.models import LONGEST_CONFIG, ModelSpec
from shardtune.service.hub import missing_models, model_files
from shardtune.service.process.dns_resolver import DnsResolver
from shardtune.service.process.public_addresses import AddressRejected, ascii_host, resolve_checked

_TIMEOUT_S = 10.0
_MOST_REDIRECTS = 3
_PRIVATE_REMEDY = (
    "read it on your own machine, where `shardtune tune` and `shardtune predict` use your token, or give the content of "
    "its config.json"
)
_ADDRESS_REMEDY = "let the operator set SHARDTUNE_HUB_ALLOW_PRIVATE=true"


class HubUnavailable(Exception):
    """Error: the model hub did not answer, or its answer was not one that a hub gives. The same request may succeed
    later.
    """


@dataclass(frozen=True)
class HubRules:
    """Address of the model hub, and rules about the network addresses that the service may contact to read it."""

    endpoint: str
    hosts: frozenset[str]
    """Names of the hosts from which the model hub's files may be requested; redirects may lead only to these."""
    allow_private: bool
    look_ups: DnsResolver
    tls: ssl.SSLContext


@dataclass(frozen=True)
class _Answer:
    status: int
    code: str
    """Value of the header X-Error-Code in the hub's response, such as `GatedRepo`; empty if the request succeeded."""
    commit: str
    text: str


async def read_model(source: HubSource, rules: HubRules) -> ModelSpec:
    """Read the model of a hub repository; `hub.revision` of the result is the commit that was read.

    Raises:
        ValueError: the model does not exist, may not be read, or cannot be trained; the message names value and
            remedy.
        HubUnavailable: the hub did not answer in time, or its answer was not one that a hub gives.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            answer = await _request(source, model_files.CONFIG, rules)
            if answer.status == 404 and answer.code == "EntryNotFound":
                adapter = await _request(source, model_files.ADAPTER, rules)
                if adapter.status == 200:
                    raise model_files.adapter_error(source, adapter.text)
                raise model_files.missing_config(source)
    except TimeoutError:
        raise HubUnavailable(f"the hub did not answer within {_TIMEOUT_S:g} s") from None
    except AddressRejected as error:
        raise HubUnavailable(str(error)) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        # The error's own text may name addresses of the operator's network.
        raise HubUnavailable(f"the hub cannot be reached, or does not speak HTTP ({type(error).__name__})") from None
    _check_status(source, answer)
    return model_files.model_of(source, _commit(source, answer), answer.text)


def _check_status(source: HubSource, answer: _Answer) -> None:
    if answer.status == 200:
        return
    if answer.code == "GatedRepo":
        raise missing_models.gated(source, _PRIVATE_REMEDY)
    if answer.code == "RevisionNotFound":
        raise missing_models.no_revision(source)
    if answer.status in (401, 403, 404):
        raise missing_models.unknown(source, _PRIVATE_REMEDY)
    raise HubUnavailable(f"the hub answered {answer.status}")


def _commit(source: HubSource, answer: _Answer) -> str:
    commit = answer.commit or source.revision
    if not is_commit(commit):
        raise HubUnavailable("the hub did not name the commit (X-Repo-Commit), so the model cannot be pinned")
    return commit


async def _request(source: HubSource, file: str, rules: HubRules) -> _Answer:
    """Request a file of a repository, and follow the hub's redirects to it."""
    url = httpx.URL(f"{rules.endpoint.rstrip('/')}/{source.id}/resolve/{source.revision}/{file}")
    commit = ""
    # trust_env off: neither a proxy nor a netrc file with a password takes part.
    async with httpx.AsyncClient(
        verify=rules.tls, trust_env=False, follow_redirects=False, timeout=_TIMEOUT_S
    ) as client:
        for _ in range(_MOST_REDIRECTS + 1):
            response = await _get(client, url, rules)
            try:
                commit = commit or response.headers.get("x-repo-commit", "")
                if not response.has_redirect_location:
                    text = await _read_body(source, response) if response.status_code == 200 else ""
                    return _Answer(response.status_code, response.headers.get("x-error-code", ""), commit, text)
                url = _redirected(url, response.headers["location"])
            finally:
                await response.aclose()
    raise HubUnavailable(f"the hub redirected more than {_MOST_REDIRECTS} times")


def _redirected(url: httpx.URL, location: str) -> httpx.URL:
    try:
        target = url.join(location)
    except (httpx.InvalidURL, ValueError):
        raise HubUnavailable("the hub redirected to something that is no address") from None
    if target.scheme not in ("https", url.scheme) or target.userinfo:
        raise HubUnavailable("the hub redirected to an address without encryption, or with a password")
    return target


async def _get(client: httpx.AsyncClient, url: httpx.URL, rules: HubRules) -> httpx.Response:
    if url.host not in rules.hosts:
        raise HubUnavailable(
            f"host {url.host:.200} is not one that the service may reach; let the operator add it to SHARDTUNE_HUB_HOSTS"
        )
    address = await resolve_checked(url, rules.allow_private, rules.look_ups, _ADDRESS_REMEDY)
    # The certificate is checked against the name, while the connection goes to the checked address.
    request = client.build_request(
        "GET",
        url.copy_with(host=address),
        headers={"host": url.netloc.decode("ascii"), "accept-encoding": "identity", "user-agent": "shardtune-hub/1"},
        extensions={"sni_hostname": ascii_host(url)},
    )
    return await client.send(request, stream=True)


async def _read_body(source: HubSource, response: httpx.Response) -> str:
    # Raw bytes: a compressed body could grow without bounds as it is unpacked.
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > LONGEST_CONFIG:
            raise model_files.oversized(source)
    return body.decode(errors="replace")
