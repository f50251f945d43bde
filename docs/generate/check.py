"""`python -m docs.generate.check`: check the pages without building the site. Prints `FILE:LINE: what, remedy` and ends with 1.

A pull request that renames a file, a test or a heading learns here which pages still name the old one.
"""

import sys

from docs.generate import markers, pages, settings_reference
from docs.generate.assemble import documentation_pages
from docs.generate.checks import links, names, navigation, pictures
from docs.generate.context import PageContext


def main() -> int:
    """Run every check; returns the exit code."""
    try:
        expanded = _expanded_pages()
    except markers.MarkerError as error:
        print(error)
        return 1
    problems = [
        *links.problems(expanded),
        *names.problems(expanded),
        *names.problems_in_code(),
        *navigation.problems(),
        *pictures.problems(expanded),
        *settings_reference.without_description(),
    ]
    for problem in sorted(set(problems)):
        print(problem)
    print(f"{len(expanded)} pages checked, {len(set(problems))} problems", file=sys.stderr)
    return 1 if problems else 0


def _expanded_pages() -> dict[str, list[pages.Line]]:
    """Lines of every Markdown file by its path, with generated sections filled in."""
    homes = markers.pages_of_sections(documentation_pages())
    return {
        path: markers.expand(PageContext(path, homes), pages.read(path).splitlines())
        for path in pages.markdown_files()
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
