"""Print the figures of a checkout's language, or the places to mend.

python -m tests.architecture.language [--json] [--repo DIR]
python -m tests.architecture.language --list vague|kin|headless|comments|sentences|modules [PACKAGE ...] [--path PREFIX]
"""

import argparse
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.architecture.language.checkout import OTHER_CODE, PRODUCT, Checkout
from tests.architecture.language.measure import (
    LONGEST_SENTENCE,
    comment_counts,
    headless_docstrings,
    long_sentences,
    measure,
    participle_modules,
    vague_names,
)

ROOT = Path(__file__).parents[3]
WIDTH = 170
ENOUGH_PER_100 = 3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.language", description=__doc__.split("\n")[0])
    parser.add_argument("packages", nargs="*", help="folders at the top; default: all product code, or the docs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repo", type=Path, default=ROOT, help="checkout to measure; default: this one")
    parser.add_argument("--list", choices=("vague", "kin", "headless", "comments", "sentences", "modules"))
    parser.add_argument("--path", default="", help="only files whose path begins with this")
    parser.add_argument("--words", type=int, default=LONGEST_SENTENCE, help="list sentences over so many words")
    parser.add_argument("--files", action="store_true", help="count places by file instead of listing them")
    return parser.parse_args()


def _code_files(checkout: Checkout, packages: list[str]) -> list[str]:
    choices = (*PRODUCT, *OTHER_CODE)
    if unknown := set(packages) - set(choices):
        raise SystemExit(f"no package {', '.join(sorted(unknown))}; choose from {', '.join(choices)}, or use --path")
    # A prefix in tests/ or benchmarks/ chooses these without being named twice.
    other = tuple(name for name in OTHER_CODE if checkout.prefix.startswith(name))
    return checkout.code(tuple(packages) or other or PRODUCT)


def _comments(checkout: Checkout, files: list[str]) -> Iterator[str]:
    rows = []
    for file, count in comment_counts(checkout, files).items():
        missing = max(0, round(count.code * ENOUGH_PER_100 / 100) - count.comments)
        text = f"{count.comments} comments in {count.code} code lines, {missing} below {ENOUGH_PER_100} per 100"
        rows.append((missing, f"{file}: {text}"))
    return (row for _, row in sorted(rows, reverse=True))


def _places(checkout: Checkout, options: argparse.Namespace) -> Iterator[Any]:
    if options.list == "sentences":
        documents = checkout.documents()
        groups = [documents[name] for name in options.packages] or [documents["docs"]]
        return long_sentences(checkout, [file for group in groups for file in group], options.words)
    files = _code_files(checkout, options.packages)
    if options.list == "comments":
        return _comments(checkout, files)
    if options.list == "modules":
        return iter(participle_modules(files))
    if options.list == "headless":
        return headless_docstrings(checkout, files)
    return vague_names(checkout, files, kin=options.list == "kin")


def _print_table(figures: dict[str, Any], indent: str = "") -> None:
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            _print_table(value, indent + "  ")
        elif isinstance(value, list):
            print(f"{indent}{name:<{40 - len(indent)}} {len(value)}: {', '.join(value)}")
        else:
            shown = f"{100 * value:.2f} %" if name.endswith(("_bindings", "_plain")) else value
            print(f"{indent}{name:<{40 - len(indent)}} {shown}")


def main() -> None:
    options = _arguments()
    checkout = Checkout(options.repo, options.path)
    if options.list:
        places = list(_places(checkout, options))
        if options.files:
            counted = Counter(getattr(place, "file", place) for place in places)
            print("\n".join(f"{count:4} {file}" for file, count in counted.most_common()))
        else:
            width = None if options.list == "sentences" else WIDTH
            print("\n".join(str(place)[:width] for place in places))
        print(f"{len(places)} in all")
    elif options.json:
        print(json.dumps(measure(checkout), indent=1))
    else:
        _print_table(measure(checkout))


if __name__ == "__main__":
    # `--list … | head` closes the pipe early; that is no error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main()
