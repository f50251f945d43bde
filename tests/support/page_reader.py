"""Pages as a browser without scripts gets them."""

import re

from fastapi.testclient import TestClient

HTML = {"accept": "text/html"}


def page(client: TestClient, path: str, status: int = 200) -> str:
    """Its text; nothing in it may need what the content security policy forbids."""
    answer = client.get(path, headers=HTML)
    assert answer.status_code == status, answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"style=|<style|<script>|onclick=|https?://(?!127.0.0.1)", answer.text)
    return answer.text


def token(client: TestClient) -> str:
    """What every form sends along."""
    found = re.search(r'name="csrf" value="([^"]+)"', page(client, "/new"))
    assert found
    return found[1]
