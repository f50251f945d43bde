"""A plan has rows that a stored study measured or projected, by every door, and rejects a study of another training."""

import html
import json
import re

import pytest

import shardtune as st
from shardtune.service.cli.commands.app import app as cli
from tests.support.service.gpu_studies import tune_on_gpus
from tests.support.service.page_reader import HTML
from tests.support.service.scenarios import bearer, make_key

ASKED = {"model": "llama-tiny", "tokens": 1e9, "gpus": ["h100", "h200"], "counts": [2, 4, 8, 16], "gpus_per_node": 2,
         "start": "2098-12-01", "prices": {"h100": 2.0, "h200": 3.0}}  # fmt: skip
RUN = ("plan", "llama-tiny", "--tokens", "1e9", "--gpus", "h100,h200", "--counts", "2..16", "--gpus-per-node", "2",
       "--start", "2098-12-01", "--price", "h100=2,h200=3")  # fmt: skip


@pytest.fixture
def sqlite_start(sqlite_start, sqlite_after):
    """Begin with a finished study of two H100 that was projected to four nodes."""
    return sqlite_after(tune_on_gpus)


@pytest.fixture
def study(quick_client):
    (study,) = quick_client.get("/v1/studies").json()["studies"]
    return study


def test_each_row_is_the_studys_where_it_has_an_answer(quick_client, study):
    answer = quick_client.post("/v1/plans", json=ASKED | {"study": study["study_id"]})
    assert answer.status_code == 200, answer.text
    rows = {(row["gpu"], row["gpus"]): row for row in answer.json()["rows"]}
    result, projection = study["result"], study["result"]["projection"]
    own, there = rows["h100", 2], rows["h100", 8]
    assert (own["evidence"], own["verdict"], own["study_id"]) == ("measured", result["verdict"], study["study_id"])
    assert own["config"] == result["best"]["config"] and own["global_batch"] == 8
    assert own["tokens_per_s_per_gpu"]["expected"] == result["best"]["tokens_per_s_per_gpu"]
    assert (there["evidence"], there["config"]) == ("projected", projection["best"]["config"])
    assert there["tokens_per_s_per_gpu"] == projection["best"]["tokens_per_s_per_gpu"]
    assert rows["h100", 4]["evidence"] == rows["h100", 16]["evidence"] == "projected"
    assert {rows["h200", count]["evidence"] for count in ASKED["counts"]} == {"predicted"}
    assert answer.json()["sequence_length"] == 64


def test_the_command_the_package_and_the_route_agree(http, capsys):
    study_id = http.get("/v1/studies").json()["studies"][0]["study_id"]
    route = http.post("/v1/plans", json=ASKED | {"study": study_id}).json()
    cli([*RUN, "--study", "last", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == route
    made = st.plan(**ASKED, study="last")
    assert made.values is not None and made.values.model_dump(mode="json")["rows"] == route["rows"]
    record = next(row for row in made.records() if (row["gpu"], row["gpus"]) == ("h100", 2))
    assert (record["speed_basis"], record["verdict"]) == ("measured", route["rows"][0]["verdict"])
    cli([*RUN, "--study", study_id], standalone_mode=False)
    text = capsys.readouterr().out
    assert "measured (confirmed)" in text and f"Rows marked measured are of study {study_id}" in text
    with pytest.raises(st.InputError, match=r"study \('nobody'\) is not stored here"):
        st.plan(**ASKED, study="nobody")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"study": "study-nobody"}, "study", "is not stored here; name a stored study"),
        ({"study": ""}, "study", "at least 1 character"),
        ({"model": "gpt2"}, "study", "trained llama-tiny, and the plan is of gpt2"),
        ({"sequence_length": 128}, "sequence_length", "which trained samples of 64 tokens"),
        ({"precision": "fp16-mixed"}, "precision", "leave precision out"),
        ({"gpus": ["h200"], "prices": {}}, "study", "no row is of its speeds: it measured 2 × NVIDIA H100 80GB HBM3"),
    ],
)
def test_another_training_is_rejected_with_field_value_and_remedy(quick_client, study, changes, field, words):
    answer = quick_client.post("/v1/plans", json=ASKED | {"study": study["study_id"]} | changes)
    assert answer.status_code == 422 and words in answer.text, answer.text
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_a_key_that_may_not_read_studies_plans_without_them(quick_client, study):
    admin = bearer(make_key(quick_client, "admin"))
    reader = bearer(make_key(quick_client, "configs:read", **admin))
    other = bearer(make_key(quick_client, "studies:read", project="other", **admin))
    named = ASKED | {"study": study["study_id"]}
    assert quick_client.post("/v1/plans", json=ASKED, headers=reader).status_code == 200
    rejected = quick_client.post("/v1/plans", json=named, headers=reader)
    assert (rejected.status_code, rejected.json()["code"]) == (403, "scope_missing")
    unseen = quick_client.post("/v1/plans", json=named, headers=other)
    unknown = quick_client.post("/v1/plans", json=ASKED | {"study": "study-nobody"}, headers=other)
    assert unseen.status_code == unknown.status_code == 422
    assert unseen.text.replace(study["study_id"], "study-nobody") == unknown.text


def test_the_page_marks_what_the_study_measured(quick_client, study):
    form = {"model": "llama-tiny", "tokens": "1e9", "gpus": "h100", "counts": "2..16", "gpus_per_node": "2",
            "study": study["study_id"]}  # fmt: skip
    answer = quick_client.get("/plans", params=form, headers=HTML)
    text = html.unescape(answer.text)
    assert answer.status_code == 200, text
    first, *others = re.findall(r'<td data-label="Source">(.*?)</td>', text)
    assert "measured (confirmed)" in first and f'href="/studies/{study["study_id"]}"' in first
    assert len(others) == 3 and all(other.startswith("projected<") for other in others)
    assert f"Rows marked measured are of study {study['study_id']}" in text
    assert re.search(r"<title>2 × h100, measured \(confirmed\): ", text) and "shade-measured" in text
    assert f"study={study['study_id']}" in text.partition('<a href="/plans?')[2].partition('"')[0]
    wrong = html.unescape(quick_client.get("/plans", params=form | {"study": "study-nobody"}, headers=HTML).text)
    assert 'id="wrong-study">study (study-nobody) is not stored here' in wrong and 'value="study-nobody"' in wrong


def test_the_page_of_the_study_leads_to_a_plan_with_its_rows(quick_client, study):
    text = html.unescape(quick_client.get(f"/studies/{study['study_id']}", headers=HTML).text)
    address = re.findall(r'href="(/plans\?[^"]*)"', text)[0]
    plan = html.unescape(quick_client.get(address, headers=HTML).text)
    sources = [source.partition("<")[0] for source in re.findall(r'<td data-label="Source">(.*?)</td>', plan)]
    assert len(sources) == 4 and "measured (confirmed)" in plan and 'class="wrong"' not in plan
    assert sources[1:] == ["projected"] * 3
