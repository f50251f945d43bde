"""The pages of a service with keys: log in by key, see one's project, do what the key may, log out."""

import re

import pytest
from fastapi.testclient import TestClient

from tests.flow.helpers.uvicorn_thread import served
from tests.support.service.local_client import local_client
from tests.support.service.simulated_worker import SPEC, SimulatedWorker

HTML = {"accept": "text/html"}


def make_key(client: TestClient, *scopes: str, project: str | None = None, **headers: str) -> str:
    body = {"name": "+".join(scopes), "scopes": scopes, "project_id": project}
    answer = client.post("/v1/keys", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


def forms_of(client: TestClient) -> dict[str, str]:
    """Token that this browser's forms carry now."""
    token = re.search(r'name="csrf" value="([^"]+)"', client.get("/login", headers=HTML).text)
    assert token
    return {"csrf": token[1]}


def log_in(client: TestClient, secret: str, to: str = "/studies"):
    form = forms_of(client) | {"key": secret, "to": to}
    answer = client.post("/login", data=form, headers=HTML, follow_redirects=False)
    return answer, forms_of(client)


@pytest.fixture
def admin(quick_client) -> str:
    """The first key; from here on nobody gets in without one."""
    return make_key(quick_client, "admin")


def test_without_a_session_every_page_leads_to_the_login(quick_client, admin):
    for path in ("/", "/studies?q=a", "/new", "/workers", "/compare", "/studies/x", "/studies/x/trials/1"):
        answer = quick_client.get(path, headers=HTML, follow_redirects=False)
        assert answer.status_code == 303 and answer.headers["location"].startswith("/login?to="), path
    assert quick_client.get("/studies/x/live", follow_redirects=False).status_code == 303
    # Longer than an address to which a login returns.
    assert quick_client.get(f"/plans?prices={'a' * 3000}", headers=HTML).status_code == 200
    assert quick_client.post("/workers/w/drain", headers=HTML).status_code == 401


def test_a_key_opens_a_session_whose_cookie_no_script_reads(quick_client, admin):
    answer, _ = log_in(quick_client, admin, to="/studies?q=a")
    assert answer.status_code == 303 and answer.headers["location"] == "/studies?q=a"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and admin not in cookie
    text = quick_client.get("/studies", headers=HTML).text
    assert "Log out" in text and admin not in text


ELSEWHERE = [
    "//evil.example",
    "https://evil.example",
    "/\\evil.example",
    "/\t/evil.example",
    "/\n/evil.example",
    "/\r\n/evil.example",
    "/\t\\evil.example",
    "\t//evil.example",
    " //evil.example",
    "/ /evil.example",
    "/\u2028/evil.example",
    "javascript:alert(1)",
    "",
]


@pytest.mark.parametrize("elsewhere", ELSEWHERE, ids=ascii)
def test_the_login_leads_nowhere_else(quick_client, admin, elsewhere):
    answer, _ = log_in(quick_client, admin, to=elsewhere)
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    shown = quick_client.get("/login", params={"to": elsewhere}, headers=HTML).text
    assert "evil" not in shown and "javascript:" not in shown


def test_the_login_leads_where_the_reader_wanted_to(quick_client, admin):
    for to, location in {
        "/studies?q=a&page=2": "/studies?q=a&page=2",
        "/studies?q=%20ä": "/studies?q=%20%C3%A4",
    }.items():
        answer, _ = log_in(quick_client, admin, to=to)
        assert answer.headers["location"] == location


def test_over_tls_cookies_are_this_host_s_alone(quick_client, admin):
    """A cookie of the bare name, which another host of the domain could set, counts for nothing there."""
    browser = TestClient(quick_client.app, base_url="https://tune.example")
    answer, _ = log_in(browser, admin)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-shardtune_session=") and "Secure" in cookie and "Path=/" in cookie
    assert "Domain" not in cookie
    assert browser.get("/studies", headers=HTML, follow_redirects=False).status_code == 200
    token = browser.cookies["__Host-shardtune_session"]
    planted = TestClient(quick_client.app, base_url="https://tune.example", cookies={"shardtune_session": token})
    assert planted.get("/studies", headers=HTML, follow_redirects=False).status_code == 303


def test_a_form_belongs_to_the_session_it_was_made_for(quick_client, admin):
    """Neither another session's token counts nor the one from before the login, whatever cookies a site manages to set."""
    before = forms_of(quick_client)
    _, own = log_in(quick_client, admin)
    other = local_client(quick_client.app)
    _, others = log_in(other, admin)
    assert len({before["csrf"], own["csrf"], others["csrf"]}) == 3
    visitor = quick_client.cookies["shardtune_visitor"]
    for wrong in (before, others, {}, {"csrf": ""}, {"csrf": visitor}):
        answer = quick_client.post("/settings/keys", data=wrong | {"name": "x", "scope": ["admin"]}, headers=HTML)
        assert answer.status_code == 403, wrong
    answer = quick_client.post("/settings/keys", data=own | {"name": "x", "scope": ["admin"]}, headers=HTML)
    assert answer.status_code == 200 and "shardtune_" in answer.text


def test_commands_of_a_service_with_keys_name_a_key_file(quick_client, admin):
    log_in(quick_client, admin)
    for path in ("/", "/workers"):
        text = quick_client.get(path, headers=HTML).text
        assert "SHARDTUNE_API_KEY_FILE=KEY_FILE shardtune worker --service http://127.0.0.1<" in text, path


def test_pages_count_against_the_requests_of_a_minute(quick_client, admin):
    bearer = {"authorization": f"Bearer {admin}"}
    reader = make_key(quick_client, "studies:read", project="team-a", **bearer)
    log_in(quick_client, reader)
    quotas = {"quotas": {"requests_per_minute": 3}}
    quick_client.put("/v1/projects/team-a", json=quotas, headers=bearer).raise_for_status()
    answers = [quick_client.get("/studies", headers=HTML).status_code for _ in range(4)]
    assert answers[-1] == 429 and answers[0] == 200


def test_a_page_s_stream_ends_with_its_session(sqlite_url):
    with served(sqlite_url, stream_heartbeat_s=0.1) as service:
        SimulatedWorker(service.client).register()
        study_id = service.client.post("/v1/studies", json=SPEC).json()["study_id"]
        admin = make_key(service.client, "admin")
        _, token = log_in(service.client, admin)
        with service.client.stream("GET", f"/studies/{study_id}/live") as stream:
            assert service.client.post("/logout", data=token).status_code == 303
            lines = list(stream.iter_lines())
        assert "event: changed" in lines and "event: ended" not in lines


def test_a_wrong_key_and_a_worker_s_key_open_nothing(quick_client, admin):
    lease = make_key(quick_client, "workers:lease", authorization=f"Bearer {admin}")
    for secret, status in (("shardtune_wrong", 401), ("", 401), (lease, 403)):
        answer, _ = log_in(quick_client, secret)
        assert answer.status_code == status and 'role="alert"' in answer.text
        assert "shardtune_session" not in answer.headers.get("set-cookie", "")


def test_a_reader_of_one_project_reads_it_only(quick_client, admin):
    quick_client.headers["authorization"] = f"Bearer {admin}"
    SimulatedWorker(quick_client).register()
    theirs = quick_client.post("/v1/studies", json=SPEC).json()["study_id"]
    reader = make_key(quick_client, "studies:read", project="team-a")
    del quick_client.headers["authorization"]
    _, token = log_in(quick_client, reader)
    assert theirs not in quick_client.get("/studies", headers=HTML).text
    assert quick_client.get(f"/studies/{theirs}", headers=HTML).status_code == 404
    assert "Not comparable" in quick_client.get(f"/compare?pick={theirs}:0", headers=HTML).text
    assert quick_client.post("/new", data=token, headers=HTML).status_code == 403
    assert quick_client.post(f"/studies/{theirs}/cancel", data=token, headers=HTML).status_code == 403


def test_a_session_ends_by_logging_out_by_time_and_with_its_key(quick_client, admin, clock):
    def is_in() -> bool:
        return quick_client.get("/studies", headers=HTML, follow_redirects=False).status_code == 200

    _, token = log_in(quick_client, admin)
    assert is_in()
    quick_client.post("/logout", data=token)
    assert not is_in()
    log_in(quick_client, admin)
    clock.turn(11 * 3600)
    assert is_in()
    clock.turn(2 * 3600)
    assert not is_in()
    log_in(quick_client, admin)
    bearer = {"authorization": f"Bearer {admin}"}
    key_id = quick_client.get("/v1/keys", headers=bearer).json()["keys"][0]["key_id"]
    quick_client.post(f"/v1/keys/{key_id}:revoke", headers=bearer)
    assert not is_in()


def test_the_settings_show_a_secret_once_and_revoke(quick_client):
    token = re.search(r'name="csrf" value="([^"]+)"', quick_client.get("/settings", headers=HTML).text)
    assert token
    form = {"csrf": token[1], "name": "first", "scope": ["admin"]}
    wrong = quick_client.post("/settings/keys", data=form | {"days": "-1"}, headers=HTML)
    assert wrong.status_code == 422 and "expires_in_days" in wrong.text
    response = quick_client.post("/settings/keys", data=form, headers=HTML)
    secret = re.search(r"shardtune_[\w-]{30,}", response.text)
    assert secret
    log_in(quick_client, secret[0])
    again = quick_client.get("/settings", headers=HTML).text
    assert secret[0] not in again and "valid</span>" in again
    key_id = re.search(r"/settings/keys/(key-\w+)/revoke", again)
    assert key_id
    quick_client.post(f"/settings/keys/{key_id[1]}/revoke", data=forms_of(quick_client))
    assert quick_client.get("/", headers=HTML, follow_redirects=False).status_code == 303


def test_the_settings_are_for_administrators(quick_client, admin):
    log_in(quick_client, make_key(quick_client, "studies:read", authorization=f"Bearer {admin}"))
    assert quick_client.get("/settings", headers=HTML).status_code == 403
