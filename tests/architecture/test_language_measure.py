"""Counts of the measure of the language, on small texts."""

import ast
import shutil
from pathlib import Path

import pytest

from tests.architecture.draw_passages import draw
from tests.architecture.language.checkout import Checkout
from tests.architecture.language.code import bindings, count_comments, docstrings, documented_lines
from tests.architecture.language.measure import long_sentences, measure, participle_modules, percentile_90, vague_names
from tests.architecture.language.prose import read_page
from tests.architecture.language.vocabulary import is_headless, is_vague


def names(source: str) -> list[str]:
    return sorted(binding.name for binding in bindings(ast.walk(ast.parse(source))))


@pytest.mark.parametrize(
    ("source", "bound"),
    [
        ("total = 1", ["total"]),
        ("for row, (a, b) in rows: pass", ["a", "b", "row"]),
        ("def rank(trials, *rest, key=None, **options): return trials", ["key", "options", "rank", "rest", "trials"]),
        ("class State(Enum):\n    HELD = 'held'", ["HELD", "State"]),
        ("class Row:\n    told: int = 0", ["Row", "told"]),
        ("self.seen = 1", ["seen"]),
        ("try:\n    f()\nexcept ValueError as error:\n    pass", ["error"]),
        ("match value:\n    case [first, *rest]: pass", ["first", "rest"]),
        ("import numpy as np, a as a", ["np"]),
        ("kind: Literal['one', 2, 'all']", ["all", "kind", "one"]),
        ("found(one, told=left)", []),
    ],
)
def test_every_way_to_bind_a_name_is_counted(source: str, bound: list[str]) -> None:
    assert names(source) == bound


@pytest.mark.parametrize("name", ["found", "_found", "FOUND", "Seen", "untold", "when", "_what"])
def test_a_vague_name_is_vague_in_any_spelling(name: str) -> None:
    assert is_vague(name)


@pytest.mark.parametrize("name", ["found_rows", "foundation", "_", "__", "onegin", "whole_units", "self"])
def test_a_name_with_a_noun_is_not_vague(name: str) -> None:
    assert not is_vague(name)


@pytest.mark.parametrize(
    "text",
    [
        "Of a command.",
        "In bytes; None: unlimited.",
        "None: it teaches nothing.",
        "What it is for.",
        "Whose certificates count.",
        "The same for hosts.",
        "Such as `all-gathers`.",
        "At most three rows.",
        "It may start.",
        "One that fits.",
        "One of them.",
        "Each in words.",
        "(Of the case.)",
        "\n    Where it stands.",
    ],
)
def test_an_opening_without_a_head_is_headless(text: str) -> None:
    assert is_headless(text)


@pytest.mark.parametrize(
    "text",
    [
        "Maximum number of rows.",
        "Whether a rank ran there.",
        "Return the rows of a study.",
        "One decision about a configuration.",
        "One of `search` and `final`.",
        "Per-rank memory in bytes.",
        "On-disk size.",
        "Whatnot",
        "The other host's name.",
        "Each rank's steps.",
        "All attempts at a configuration.",
        "`in` means membership.",
        "",
    ],
)
def test_an_opening_with_a_head_is_not_headless(text: str) -> None:
    assert not is_headless(text)


def test_docstrings_of_attributes_and_help_texts_are_read() -> None:
    source = '''"""Module text."""
class Row(Schema):
    """Class text."""
    size: int = 0
    """Attribute text."""
    url: str = Field(description="Help text.")
    def read(self):
        """Function text."""
        x = 1
        f"no docstring"
LIMIT = 3
"""Constant text."""
'''
    assert {
        (docstring.kind, docstring.text, docstring.line) for docstring in docstrings(ast.walk(ast.parse(source)))
    } == {
        ("module", "Module text.", 1),
        ("class", "Class text.", 3),
        ("attribute", "Attribute text.", 5),
        ("help", "Help text.", 6),
        ("function", "Function text.", 8),
        ("attribute", "Constant text.", 12),
    }


def test_comments_are_counted_by_line_without_pragmas_and_docstrings() -> None:
    source = '''"""Module.

# no comment
"""
# A reason.
x = 1  # a unit

y = f()  # noqa: BLE001
z = f()  # noqa: BLE001  # a border
# type: ignore
text = """
# no comment

"""
'''
    documented = documented_lines(ast.walk(ast.parse(source)))
    assert count_comments(source, documented) == (3, 6)


def lengths(text: str) -> list[tuple[int, int]]:
    return [(sentence.line, sentence.words) for sentence in read_page(text).sentences]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One two three. Four five six seven.", [(1, 3), (1, 4)]),
        ("One two\nthree. Four five\nsix.", [(1, 3), (2, 3)]),
        ("- one two three\n- four five six\n  seven\n", [(1, 3), (2, 4)]),
        ("# A heading of five words\n\nOne two three.", [(3, 3)]),
        ("A heading of five words\n===\nOne two three.", [(3, 3)]),
        ("| a b c | d e f |\n|---|---|\n| g h i. | j |\n", []),
        ("```sh\none two three\n```\n\nOne two three.", [(5, 3)]),
        ("- item one two:\n  ```\n  a b c d\n  ```\n  three four five\n", [(1, 3), (5, 3)]),
        ("Run `shardtune tune a.json. b` twice.", [(1, 3)]),
        ("See [the page of knobs](a/b.md#c d) for more.", [(1, 7)]),
        ("Some strategies, e.g. FSDP2, gather twice.", [(1, 6)]),
        ("Version 2.13 of torch is needed.", [(1, 6)]),
        ("**Why.** Ranks may fail at once.", [(1, 5)]),
        ('!!! note "A title of words"\n\n    One two three.\n', [(3, 3)]),
        ("---\ntitle: a b c\n---\nOne two three.\n", [(4, 3)]),
        ("<!-- a b c\nd e f -->\nOne two three.", [(3, 3)]),
        ("> One two three.\n> Four five six.", [(1, 3), (2, 3)]),
        ("Wait! Is it (really) so?", [(1, 4)]),
    ],
)
def test_sentences_are_those_of_prose(text: str, sentences: list[tuple[int, int]]) -> None:
    assert lengths(text) == sentences


def test_code_blocks_pictures_and_you_are_counted() -> None:
    page = read_page(
        "You see ![a study](study.png#only-light) ![a study](study-dark.png#only-dark) on your page.\n\n"
        "```\n![none](x.png)\n```\n\n~~~~\n```\n~~~~\n\n<img src='a.png'>\n![badge](https://host/badge.svg)\n"
    )
    assert (page.code_blocks, page.pictures, page.you, page.words, page.lines) == (2, 2, 2, 5, 12)


def test_sentences_of_tables_are_kept_apart() -> None:
    page = read_page("| what | why |\n|---|---|\n| One two three four. | Five `a | b` \\| six seven. Yes. |\n")
    assert page.cells[0].words == 4
    assert page.sentences == []


def test_the_percentile_is_a_value_of_the_list() -> None:
    assert percentile_90(list(range(1, 11))) == 9 and percentile_90([4]) == 4 and percentile_90([]) == 0


def test_modules_and_folders_of_bare_participles_are_named() -> None:
    files = [
        "a/asked.py",
        "a/held_run.py",
        "a/sharding.py",
        "a/working.py",
        "a/guided/rank.py",
        "a/told.py",
        "a/speed.py",
    ]
    assert participle_modules(files) == ["a/asked.py", "a/guided/", "a/told.py", "a/working.py"]


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one module, a page, a record, and a link to the module's folder."""
    texts = {
        "tuner/rank.py": 'def rank(found):\n    """In words."""\n    # A reason.\n    return found\n',
        "docs/page.md": f"{'word ' * 36}end.\n\nYou see six words in here.\n",
        "docs/measurements/run.md": "A record of five words here.\n",
        "CODE_OF_CONDUCT.md": "The text of somebody else.\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "shardtune").mkdir()
    (tmp_path / "shardtune" / "tuner").symlink_to("../tuner")
    return Checkout(tmp_path)


def test_a_checkout_is_measured(checkout: Checkout) -> None:
    figures = measure(checkout)
    chosen = (
        "vague_bindings",
        "bindings",
        "docstrings_headless",
        "docstrings_headless_classes_functions",
        "comments_per_100",
    )
    assert [figures[name] for name in chosen] == [0.5, 2, 1, 1, {"tuner": 50.0}]
    assert (figures["docs"]["files"], figures["docs"]["words"], figures["docs"]["sentences_over_35"]) == (1, 43, 1)
    assert figures["records"]["measurements"]["sentences"] == 1


def test_places_are_listed_with_their_lines(checkout: Checkout) -> None:
    assert [str(place) for place in vague_names(checkout, checkout.code())] == [
        "tuner/rank.py:1 argument: found | def rank(found):"
    ]
    assert [(place.line, place.kind) for place in long_sentences(checkout, ["docs/page.md"])] == [(1, "37 words")]


def test_a_prefix_chooses_files(checkout: Checkout) -> None:
    assert Checkout(checkout.root, "tuner/").code() == ["tuner/rank.py"]
    assert Checkout(checkout.root, "service/").code() == []


def test_the_same_seed_draws_the_same_passages(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "docs").mkdir()
    shutil.copy(root / "docs" / "index.md", tmp_path / "docs")
    shutil.copytree(root / "db" / "queries", tmp_path / "db" / "queries")
    checkout = Checkout(tmp_path)
    first, second = draw(checkout, seed=7, count=6), draw(checkout, seed=7, count=6)
    assert first == second and len(set(first)) == 6
    assert sum(passage.kind == "documentation" for passage in first) == 3
