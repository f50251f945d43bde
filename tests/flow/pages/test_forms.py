"""Every form of the pages, with whatever a browser or somebody else puts into it: an answer for a person, never a failure."""

import re

import pytest
from fastapi.routing import iter_route_contexts

from tests.support.service.page_reader import HTML, token
from tests.support.service.scenarios import create
from tests.support.service.simulated_worker import SimulatedWorker

LONG = "9" * 5000
PARAMETER = re.compile(r"\{[^}]*\}")
ANSWERS = (200, 303, 401, 403, 404, 409, 413, 422, 429)
WORDS = ("", "x", "-1", "1e999", LONG, "\0", "[]", '{"a": [', "☃", "../../etc/passwd")


def forms(app):
    """Address and fields of each."""
    for route in iter_route_contexts(app.routes):
        path = route.path_format or ""
        if "POST" in (route.methods or ()) and not path.startswith("/v1/"):
            yield path, fields_of(route.dependant)


def fields_of(dependant):
    """Names of all that it reads from a form; a model's are its fields."""
    own = [
        name
        for param in dependant.body_params
        for name in getattr(param.field_info.annotation, "model_fields", {param.alias: None})
    ]
    return own + [name for needed in dependant.dependencies for name in fields_of(needed)]


@pytest.fixture
def client(quick_client):
    SimulatedWorker(quick_client).register()
    return quick_client


def test_no_form_fails(client):
    study_id, csrf = create(client), token(client)
    app = client.app
    client = type(client)(
        app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), cookies=client.cookies, raise_server_exceptions=False
    )
    cases = [(study_id, word) for word in WORDS] + [(name, "x") for name in ("x", "%00", LONG)]
    actual_forms = list(forms(app))
    assert len(actual_forms) >= 15
    for path, fields in actual_forms:
        for name, word in cases:
            address, filled = PARAMETER.sub(name, path), dict.fromkeys(fields, word)
            for sent in (filled | {"csrf": csrf}, filled) if word == "x" else (filled | {"csrf": csrf},):
                answer = client.post(address, data=sent, headers=HTML, follow_redirects=False)
                assert answer.status_code in ANSWERS, (address, sent, answer.text)
                assert answer.status_code == 303 or answer.headers["content-type"].startswith("text/html"), address
                assert "Traceback" not in answer.text
