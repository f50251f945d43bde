"""Words of numbers."""

import pytest

from shardtune.api_schemas.formatting import counted, memory, memory_in_column


def test_a_number_has_its_noun_in_the_singular_or_plural() -> None:
    assert [counted(number, "rank") for number in (0, 1, 16)] == ["0 ranks", "1 rank", "16 ranks"]


@pytest.mark.parametrize(
    ("amounts", "texts"),
    [
        ((0.0990, 0.1030), ["101.4 MiB", "105.5 MiB"]),
        ((0.0841, 0.0848), ["86.1 MiB", "86.8 MiB"]),
        ((0.35, 0.36), ["358.4 MiB", "368.6 MiB"]),
        ((0.99, 1.02), ["0.99 GiB", "1.02 GiB"]),
        ((0.05, 79.2), ["0.050 GiB", "79.2 GiB"]),
    ],
)
def test_amounts_that_are_compared_have_one_unit(amounts: tuple[float, float], texts: list[str]) -> None:
    assert [memory(*amounts), memory(*reversed(amounts))] == texts


def test_amounts_below_a_gibibyte_have_one_unit_wherever_they_stand() -> None:
    """83.1 MiB stood beside 0.11 GiB in one table."""
    assert [memory(0.0812), memory(0.11), memory(0.99)] == ["83.1 MiB", "112.6 MiB", "1,014 MiB"]
    assert memory(1.0) == "1.00 GiB"


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        ((0.0848, 0.99, 1.9), ["86.8 MiB", "1,014 MiB", "1,946 MiB"]),
        ((0.0848, 0.5, 12.5), ["86.8 MiB", "512.0 MiB", "12.5 GiB"]),
        ((9.99,), ["10,230 MiB"]),
        ((10.0,), ["10.0 GiB"]),
    ],
)
def test_a_column_has_one_unit_unless_large_amounts_would_leave_small_ones_no_digits(
    column: tuple[float, ...], texts: list[str]
) -> None:
    assert [memory_in_column(gib, column) for gib in column] == texts
