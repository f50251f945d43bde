"""Ctrl-C in `studies create`: the message says what became of the study."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardtune.service.cli.commands import studies
from shardtune.service.cli.errors import Interrupted


@pytest.mark.parametrize(
    ("waits", "message"),
    [
        (True, "interrupted; the study was cancelled, or completed if its answer was known; results are kept"),
        (False, "interrupted"),
    ],
)
def test_only_a_study_that_is_followed_is_said_to_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool, message: str
) -> None:
    """Without `--wait` it goes on; cancelled in its sustained run it is complete."""

    class Client:
        def create_study(self, *_: object) -> None:
            raise KeyboardInterrupt

    @contextmanager
    def connected(*_: object) -> Iterator[Client]:
        yield Client()

    monkeypatch.setattr(studies, "connect", connected)
    path = tmp_path / "study.json"
    path.write_text(json.dumps({"model": "llama-tiny", "workload": {"sequence_length": 64, "global_batch": 16}}))
    with pytest.raises(Interrupted) as interrupted:
        studies.create(path, wait=waits)
    assert interrupted.value.lines == [message]
