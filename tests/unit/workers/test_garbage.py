import gc
from collections.abc import Iterator

import pytest

from shardtune.workers.rank.process.garbage import StepwiseCollection


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """Generations collected since the test began; automatic collection is as before afterwards."""
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    was_enabled = gc.isenabled()
    gc.callbacks.append(note)
    yield generations
    gc.callbacks.remove(note)
    if was_enabled:
        gc.enable()


def test_garbage_is_collected_after_every_nth_step_only(collected: list[int]) -> None:
    garbage = StepwiseCollection(3)
    garbage.begin()
    assert not gc.isenabled()
    collected.clear()
    counts = []
    for _ in range(7):
        garbage.end_step()
        counts.append(len(collected))
    assert counts == [0, 0, 1, 1, 1, 2, 2] and set(collected) == {1}


def test_without_a_number_python_decides() -> None:
    garbage = StepwiseCollection(0)
    garbage.begin()
    garbage.end_step()
    assert gc.isenabled()
