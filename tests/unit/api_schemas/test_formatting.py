"""Words of numbers."""

from shardtune.api_schemas.formatting import counted


def test_a_number_has_its_noun_in_the_singular_or_plural() -> None:
    assert [counted(number, "rank") for number in (0, 1, 16)] == ["0 ranks", "1 rank", "16 ranks"]
