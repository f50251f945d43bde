"""Words of numbers."""

import pytest

from shardtune.api_schemas.formatting import counted, memory


def test_a_number_has_its_noun_in_the_singular_or_plural() -> None:
    assert [counted(number, "rank") for number in (0, 1, 16)] == ["0 ranks", "1 rank", "16 ranks"]


@pytest.mark.parametrize(
    ("amounts", "texts"),
    [
        ((0.0990, 0.1030), ["0.099 GiB", "0.103 GiB"]),
        ((0.0841, 0.0848), ["86.1 MiB", "86.8 MiB"]),
        ((0.35, 0.36), ["0.35 GiB", "0.36 GiB"]),
        ((0.05, 79.2), ["0.050 GiB", "79.2 GiB"]),
    ],
)
def test_amounts_that_are_compared_have_one_unit(amounts: tuple[float, float], texts: list[str]) -> None:
    assert [memory(*amounts), memory(*reversed(amounts))] == texts
    assert [memory(0.0990), memory(0.1030)] == ["101.4 MiB", "0.10 GiB"]
