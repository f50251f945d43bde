"""Command lines of processes, some of which have ended."""

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Command line of a process; empty for one that has ended, waited for or not."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def children_with(word: str) -> list[psutil.Process]:
    """Living processes that this one started, at any depth, with the word in their command line."""
    return [child for child in psutil.Process().children(recursive=True) if word in " ".join(words_of(child))]
