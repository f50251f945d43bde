"""The documentation site under `/docs/`, where its folder is."""

import pytest
from fastapi.testclient import TestClient

from shardtune.db.session import Database
from shardtune.service.app import create_app
from shardtune.service.pages.documentation import site_folder
from shardtune.service.process.context import Context
from shardtune.service.settings import Settings
from tests.flow.helpers.manual_clock import Clock
from tests.support.service.local_client import local_client
from tests.support.service.page_reader import page


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    (folder / "how-to").mkdir(parents=True)
    (folder / "index.html").write_text("<h1>Shardtune</h1>")
    (folder / "how-to/hosts.html").write_text("<h1>Hosts</h1>")
    return folder


@pytest.fixture
def client(sqlite_template, tmp_path, site) -> TestClient:
    url = f"sqlite:///{tmp_path / 'service.sqlite3'}"
    (tmp_path / "service.sqlite3").write_bytes(sqlite_template.read_bytes())
    settings = Settings(database_url=url, docs_dir=site)
    with local_client(create_app(context=Context(Database(url), settings, Clock()), migrate=False)) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "stated"), [("/docs", "Shardtune"), ("/docs/", "Shardtune"), ("/docs/how-to/hosts.html", "Hosts")]
)
def test_a_page_of_the_site_loads_only_files_of_this_service(client, path, stated):
    answer = client.get(path)
    assert answer.status_code == 200 and stated in answer.text
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'" == policy["style-src"]


def test_a_drawing_has_its_own_styles_and_runs_nothing(client, site):
    (site / "curve.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    policy = client.get("/docs/curve.svg").headers["content-security-policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; sandbox"


def test_pages_link_to_the_site(client):
    assert '<a href="/docs/">Docs</a>' in page(client, "/")


def test_a_page_that_the_site_lacks_is_answered_like_any_other(client):
    assert "There is no page" in page(client, "/docs/nothing.html", 404)


def test_nothing_outside_the_site_is_served(client, site):
    site.with_name("secret").write_text("secret")
    assert client.get("/docs/%2e%2e/secret").status_code == 404


def test_the_site_is_the_folder_that_is_set_or_the_one_that_was_built(site, tmp_path):
    assert site_folder(Settings(docs_dir=site), tmp_path) == site
    assert site_folder(Settings(), site) == site
    assert site_folder(Settings(), tmp_path) is None


def test_a_folder_without_a_site_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(
        ValueError, match=r"docs_dir \(.*\) has no index.html; name the folder that `make docs` has built"
    ):
        Settings(docs_dir=tmp_path)
