"""Templates of exported files: text with `$names` to fill in, read from the files of this package."""

from collections.abc import Sequence
from importlib.resources import files as package_files
from string import Template

_FOLDER = package_files("shardtune.tuner.export") / "templates"


def fill(name: str, **values: object) -> str:
    """Fill in a template of an exported file; a line that consists of a single placeholder (`$name`) is dropped if its
    value is empty.

    A name in the template without a value raises KeyError, which indicates an error in Shardtune.
    """
    text = (_FOLDER / f"{name}.template").read_text(encoding="utf-8")
    empty = {f"${key}" for key, value in values.items() if value == ""}
    # Optional lines would otherwise leave blank lines.
    lines = [line for line in text.split("\n") if line.strip() not in empty]
    return Template("\n".join(lines)).substitute(values)


def indent(lines: Sequence[str], spaces: int) -> str:
    """Source lines, each indented by `spaces` spaces."""
    return "\n".join(f"{' ' * spaces}{line}".rstrip() for line in lines)
