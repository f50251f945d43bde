"""Models by name on the command line: read by huggingface_hub with the user's cache and token, which stays theirs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardtune.service.cli.models import source
from tests.support.service.model_hub import COMMIT, TINY, ModelHub, model_hub

MAIN = "import sys; from shardtune.service.cli import main; main(sys.argv[1:])"
PREDICT = ("--cluster", "8xh100", "--seq-len", "64", "--top", "0", "--json")


@pytest.fixture
def hub() -> Iterator[ModelHub]:
    with model_hub() as opened:
        yield opened


def run(hub_url: str, home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python(hub_url, home, MAIN, *arguments, **variables)


def run_python(
    hub_url: str, home: Path, code: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code as a user of this hub does, whatever earlier tests of this process have set about hubs."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    environment = kept | {"HF_ENDPOINT": hub_url, "HF_HOME": str(home), "NO_COLOR": "1"} | variables
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=home, timeout=120)


def test_a_model_is_read_once_then_from_the_cache_also_offline(hub: ModelHub, tmp_path: Path) -> None:
    first = run(hub.url, tmp_path, "predict", "org/tiny", *PREDICT)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["model"] == "org/tiny"
    paths = {request[1] for request in hub.requests}
    assert paths <= {f"/org/tiny/resolve/{revision}/config.json" for revision in ("main", COMMIT)}
    hub.requests.clear()
    offline = run(hub.url, tmp_path, "predict", "org/tiny", *PREDICT, HF_HUB_OFFLINE="1")
    assert offline.returncode == 0 and offline.stdout == first.stdout and hub.requests == []


def test_a_gated_model_is_read_with_the_users_token_which_is_neither_shown_nor_stored(
    hub: ModelHub, tmp_path: Path
) -> None:
    rejected = run(hub.url, tmp_path, "predict", "gated/model", *PREDICT)
    assert rejected.returncode == 2 and "is gated" in rejected.stderr and "hf auth login" in rejected.stderr
    read = run(hub.url, tmp_path, "predict", "gated/model", *PREDICT, HF_TOKEN=hub.secret)
    assert read.returncode == 0, read.stderr
    assert (None in {request[2] for request in hub.requests}) and f"Bearer {hub.secret}" in {r[2] for r in hub.requests}
    wrong = run(hub.url, tmp_path, "predict", "gated/other", *PREDICT, HF_TOKEN="hf_wrong_token")
    assert wrong.returncode == 2
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (hub.secret, "hf_wrong_token"):
        assert secret.encode() not in written
        assert secret not in rejected.stderr + read.stdout + read.stderr + wrong.stdout + wrong.stderr


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("org/absent", "does not exist on the hub, or is private"),
        ("org/tiny@v9", "has no revision v9"),
        ("org/remote", "needs code of its repository (auto_map)"),
        ("org/huge", "at most 262144 are read"),
        ("org/adapter", "is an adapter of org/tiny"),
        ("org/tiny@../x", "is no id of the hub"),
    ],
)
def test_a_model_that_cannot_be_trained_is_bad_input(hub: ModelHub, tmp_path: Path, model: str, words: str) -> None:
    ran = run(hub.url, tmp_path, "predict", model, *PREDICT)
    assert ran.returncode == 2 and words in ran.stderr and "Traceback" not in ran.stderr, ran.stderr


def test_a_hub_that_is_down_is_a_failure_of_the_platform(tmp_path: Path) -> None:
    ran = run("http://127.0.0.1:9", tmp_path, "predict", "org/tiny", *PREDICT, HF_HUB_OFFLINE="1")
    assert ran.returncode == 4 and "HF_HUB_OFFLINE is set" in ran.stderr and "Traceback" not in ran.stderr


def test_a_study_file_that_names_a_repository_is_pinned_before_it_is_sent(hub: ModelHub, tmp_path: Path) -> None:
    script = (
        "import json, sys; from pathlib import Path; from shardtune.service.cli import study_file; "
        "spec = study_file.validate_study(json.loads(sys.argv[1]), Path('.')); print(spec.model.model_dump_json())"
    )
    for model in ("org/tiny", {"hub": "org/tiny@main", "name": "mine"}):
        study = {"model": model, "workload": {"sequence_length": 64, "global_batch": 16}}
        ran = run_python(hub.url, tmp_path, script, json.dumps(study))
        assert ran.returncode == 0, ran.stderr
        content = json.loads(ran.stdout)
        assert content["hub"] == {"id": "org/tiny", "revision": COMMIT} and content["config"] == TINY
    assert content["name"] == "mine"


def test_a_folder_is_a_model_and_one_of_an_adapter_names_its_model(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY))
    assert source.complete("tiny", tmp_path) == {"name": "tiny", "config": TINY}
    assert source.complete("llama-tiny", tmp_path) == "llama-tiny"
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/tiny"}))
    with pytest.raises(Exception, match="give the model it belongs to \\(org/tiny\\)"):
        source.complete("tuned", tmp_path)
    with pytest.raises(Exception, match=r"empty/config.json\) cannot be read"):
        (tmp_path / "empty").mkdir()
        source.complete("empty", tmp_path)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("llama-3-8b", "llama-3.1-8b"), ("Llama3.1-8B", "llama-3.1-8b"), ("qwen-2.5-7b", "qwen2.5-7b"), ("phi4", "phi-4")],
)
def test_a_name_that_is_nearly_a_presets_suggests_it(name: str, suggestion: str) -> None:
    with pytest.raises(Exception, match=f"did you mean {suggestion}"):
        source.named_model(name)
