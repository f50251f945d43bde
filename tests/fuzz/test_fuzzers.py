"""No foreign input ends in a traceback, a 500, a GiB or ten seconds. More of them: `python -m tests.fuzz --examples N`."""

import os

import pytest

from tests.fuzz.pages import page_target
from tests.fuzz.readers import READERS
from tests.fuzz.run import CORPUS, feed, kept_inputs, within_limits

EXAMPLES = int(os.environ.get("SHARDTUNE_FUZZ_INPUTS", "60"))
KEPT = [(target, path) for target in READERS for path in kept_inputs(target.name)]


@pytest.mark.parametrize(("target", "path"), KEPT, ids=lambda value: getattr(value, "name", str(value)))
def test_an_input_that_once_failed_is_read_or_rejected(target, path):
    with within_limits():
        target.read(path.read_bytes())


@pytest.mark.parametrize("target", READERS, ids=lambda target: target.name)
def test_any_input_is_read_or_rejected(target):
    feed(target, EXAMPLES)


def test_any_address_of_a_page_is_answered():
    with page_target() as target:
        for path in kept_inputs(target.name):
            target.read(path.read_bytes())
        feed(target, EXAMPLES)


def test_each_kept_input_belongs_to_a_target():
    assert {path.name for path in CORPUS.iterdir()} <= {*(target.name for target in READERS), "pages"}
