"""The first use of each of Shardtune's own words on a page leads to the glossary."""

import re

import pytest

from docs.generate import own_words, pages

PAGE = "docs/how-to/a-page.md"
GLOSSARY = own_words.own_words(pages.read(own_words.GLOSSARY))


def links_of(text: str) -> list[str]:
    return re.findall(r"\[([^\]]+)\]\([^)]*glossary\.md#", own_words.explain(PAGE, text, GLOSSARY))


def test_the_first_use_in_prose_is_linked_and_no_later_one():
    text = "# A verdict\n\n| a verdict |\n|---|\n\n`verdict`, [verdict](other.md)\n\nThe verdict, and a verdict.\n"
    explained = own_words.explain(PAGE, text, GLOSSARY)
    assert explained.splitlines()[:-1] == text.splitlines()[:-1]
    assert re.fullmatch(
        r'The \[verdict\]\(\.\./reference/glossary\.md#verdict "confirmed, [^"`\[]+"\)\{ \.own-word \}, and a verdict\.',
        explained.splitlines()[-1],
    )


def test_words_in_one_line_are_linked_side_by_side_and_never_within_a_meaning():
    assert links_of("Two pairs of the candidate and the baseline; workers with one fingerprint; a resume check.\n") == [
        "candidate",
        "baseline",
        "workers",
        "fingerprint",
        "resume check",
    ]
    assert links_of("The longer word wins in a final comparison of the 3 pairs.\n") == ["final comparison", "pairs"]


def test_words_with_an_everyday_meaning_need_an_article():
    assert links_of("The service answers, and keys come in pairs.\n") == []
    assert links_of("It gives an answer.\n") == ["answer"]


def test_code_blocks_and_reference_pages_stay_as_they_are():
    text = "```text\nthe verdict\n```\n"
    assert own_words.explain(PAGE, text, GLOSSARY) == text
    assert own_words.explain("docs/reference/api.md", "The verdict.\n", GLOSSARY) == "The verdict.\n"


def test_a_word_that_the_glossary_lacks_is_named():
    with pytest.raises(ValueError, match="lacks study, trial"):
        own_words.own_words("## Words\n\n| word | meaning here |\n")
