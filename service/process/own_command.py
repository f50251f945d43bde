"""The `shardtune` command as the user called it, for the commands that answers and errors advise."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_NAME = "shardtune"


def command_words() -> list[str]:
    """Return the words with which the user started this process: `.venv/bin/shardtune`, `python -m shardtune`, or
    `shardtune` if a shell finds that name."""
    called = sys.argv[0] if sys.argv else ""
    program = Path(called)
    if program.name == "__main__.py" and program.parent.name == _NAME:
        return [_called_python(sys.orig_argv), "-m", _NAME]
    # A test, or a program that calls `main`, is no command to advise.
    if program.name != _NAME or "/" not in called:
        return [_NAME]
    # Where a shell has found the name, the process gets the whole path as well.
    found = shutil.which(_NAME)
    return [_NAME] if found is not None and _is_same(Path(found), program) else [called]


def as_called(text: str) -> str:
    """Replace the command's name in the quoted commands of a text by the words with which the user started it."""
    return text.replace(f"`{_NAME} ", f"`{shlex.join(command_words())} ") if f"`{_NAME} " in text else text


def _called_python(arguments: Sequence[str]) -> str:
    """Return the interpreter as it was called. `arguments`: all words of the process, the interpreter first."""
    return arguments[0] if arguments and "python" in Path(arguments[0]).name else sys.executable


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return False
