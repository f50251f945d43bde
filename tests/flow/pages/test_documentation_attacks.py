"""Hostile requests to the documentation site: bytes on a socket, since a client library would correct them."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn

from shardtune.db.session import Database
from shardtune.service.app import create_app
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.flow.helpers.manual_clock import Clock

SECRET = b"not of the site"


class Answer(NamedTuple):
    """An answer as it came over the socket."""

    status: int
    headers: dict[str, str]
    body: bytes


class Server(NamedTuple):
    """A service with a documentation site."""

    port: int
    site: Path

    def ask(self, address: str, method: str = "GET", headers: str = "", host: str = "127.0.0.1") -> Answer:
        """Send a request as it is, and read until the service closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            request = f"{method} {address} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
            connection.sendall(request.encode("latin-1"))
            received = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = received.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        named = (line.partition(": ") for line in lines)
        return Answer(int(status.split()[1]), {name.lower(): value for name, _, value in named}, body)


@pytest.fixture(scope="module")
def server(sqlite_template, tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("documentation")
    site = folder / "site"
    (site / "how-to").mkdir(parents=True)
    (site / "empty").mkdir()
    (site / "index.html").write_text("<h1>Shardtune</h1>")
    (site / "how-to/index.html").write_text("<h1>Guides</h1>")
    (site / ".git").write_bytes(SECRET)
    (folder / "secret").write_bytes(SECRET)
    (site / "link").symlink_to(folder / "secret")
    (site / "folder-link").symlink_to(folder)
    (site / "loop").symlink_to("loop")
    database = folder / "service.sqlite3"
    database.write_bytes(sqlite_template.read_bytes())
    settings = Settings(database_url=f"sqlite:///{database}", docs_dir=site)
    context = Context(Database(settings.database_url), settings, Clock())
    running = uvicorn.Server(uvicorn.Config(create_app(context=context, migrate=False), log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        yield Server(listener.getsockname()[1], site)
        running.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "%2e%2e/secret",
        "..%2fsecret",
        "%252e%252e/secret",
        "..%5csecret",
        "%5c..%5csecret",
        "how-to/../../secret",
        "how-to%2f..%2f..%2fsecret",
        "%c0%ae%c0%ae/secret",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "%2f%2fetc/passwd",
        "../" * 2000 + "etc/passwd",
        "link",
        "folder-link/secret",
        ".git",
        "how-to/../.git",
    ],
)
def test_no_address_leads_out_of_the_site_or_to_a_hidden_file(server, path):
    answer = server.ask(f"/docs/{path}")
    assert answer.status == 404 and SECRET not in answer.body and b"root:" not in answer.body


@pytest.mark.parametrize(
    "path",
    [
        "nothing.html",
        "index.html/below",
        "INDEX.HTML",
        "empty",
        "empty/",
        "loop",
        "loop/below",
        "%00",
        "index.html%00.svg",
        "%ff%fe",
        "%ed%a0%80",
        "%",
        "%zz",
        "index.html;x",
        "a" * 300,
        "a/" * 4000,
        "%0d%0aX-Evil:%201",
    ],
)
def test_an_odd_address_is_a_page_that_does_not_exist(server, path):
    answer = server.ask(f"/docs/{path}")
    assert answer.status == 404 and "x-evil" not in answer.headers
    assert answer.headers["content-type"] == "application/problem+json" and len(answer.body) < 4096


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW"])
@pytest.mark.parametrize("path", ["index.html", "nothing.html"])
def test_the_site_is_only_read_and_says_how(server, method, path):
    answer = server.ask(f"/docs/{path}", method)
    assert answer.status == 405 and answer.headers["allow"] == "GET, HEAD"


def test_the_header_of_a_page_comes_without_its_body(server):
    answer = server.ask("/docs/", "HEAD")
    assert (answer.status, answer.headers["content-length"], answer.body) == (200, "18", b"")


def test_a_body_is_rejected_before_it_is_sent(server):
    assert server.ask("/docs/", "POST", "Content-Length: 99999999999\r\n").status == 413


@pytest.mark.parametrize(
    ("address", "location"),
    [
        ("/docs", "/docs/"),
        ("/docs/how-to", "/docs/how-to/index.html"),
        ("/docs/how-to/", "/docs/how-to/index.html"),
        ("/docs//evil.example/../how-to", "/docs/how-to/index.html"),
    ],
)
def test_a_redirect_stays_on_this_service_whatever_host_the_request_names(server, address, location):
    answer = server.ask(address, host="evil.example")
    assert (answer.status, answer.headers["location"]) == (307, location)


@pytest.mark.parametrize(
    "headers",
    [
        "",
        "If-None-Match: *\r\n",
        "If-Modified-Since: Fri, 01 Jan 9999 00:00:00 GMT\r\n",
        "If-Modified-Since: yesterday\r\n",
        f"If-None-Match: {'a,' * 9000}\r\n",
        "Range: bytes=0-3\r\n",
        "Range: bytes=0-0,2-3\r\n",
        f"Range: bytes={'0-,' * 4000}0-\r\n",
        "If-Range: x\r\nRange: bytes=0-3\r\n",
        "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n",
        "X-Forwarded-Host: evil.example\r\n",
    ],
)
def test_every_answer_with_a_page_carries_the_policy_and_is_asked_for_again(server, headers):
    answer = server.ask("/docs/index.html", headers=headers)
    assert answer.status in (200, 206, 304) and len(answer.body) < 1024
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-cache")
    assert "set-cookie" not in answer.headers and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("ranges", ["bytes=5-2", "bytes=9999-", "bytes=a-b", "lines=1", "bytes=--1"])
def test_a_range_that_means_nothing_is_rejected(server, ranges):
    assert server.ask("/docs/index.html", headers=f"Range: {ranges}\r\n").status in (400, 416)


def test_a_site_without_style_hashes_or_with_broken_ones_is_served(server):
    hashes = server.site / "assets/style-hashes.txt"
    hashes.parent.mkdir()
    for content in (b"\xff\xfe", b"'unsafe-inline' https://evil.example; script-src *\n"):
        hashes.write_bytes(content)
        assert "style-src 'self';" in server.ask("/docs/").headers["content-security-policy"]


def test_the_service_goes_on_after_a_page_vanished(server):
    page = server.site / "gone.html"
    page.write_text("x")
    assert server.ask("/docs/gone.html").status == 200
    page.unlink()
    assert server.ask("/docs/gone.html").status == 404
