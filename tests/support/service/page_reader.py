"""Pages as a browser without scripts gets them."""

import re

from fastapi.testclient import TestClient

HTML = {"accept": "text/html"}
_QUICK = "/plans"
"""Page with a form that every key may read and that computes nothing: `/new` predicts, for seconds of a core."""


def page(client: TestClient, path: str, status: int = 200) -> str:
    """Text of a page; nothing in it may need what the content security policy forbids."""
    answer = client.get(path, headers=HTML)
    assert answer.status_code == status, answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"style=|<style|<script>|onclick=|https?://(?!127.0.0.1)", answer.text)
    return answer.text


def token(client: TestClient) -> str:
    """Token that every form sends along."""
    match = re.search(r'name="csrf" value="([^"]+)"', page(client, _QUICK))
    assert match
    return match[1]


def log_in(client: TestClient, secret: str) -> dict[str, str]:
    """A session for a key; what every form of it sends along."""
    match = re.search(r'name="csrf" value="([^"]+)"', client.get("/login", headers=HTML).text)
    assert match
    answer = client.post("/login", data={"csrf": match[1], "key": secret}, headers=HTML, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    text = client.get(_QUICK, headers=HTML).text
    again = re.search(r'name="csrf" value="([^"]+)"', text)
    assert again, text
    return {"csrf": again[1]}
