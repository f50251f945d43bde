"""YAML of a launcher's file: written by PyYAML alone, with scripts of several lines as blocks that people can read."""

from typing import Any

import yaml

from shardtune.tuner.export.launchers.launch_facts import SET_ME
from shardtune.tuner.export.quoting import remark
from shardtune.tuner.export.source import ExportSource
from shardtune.tuner.export.templates import fill
from shardtune.tuner.export.trial_rendering import comment


class _BlockDumper(yaml.SafeDumper):
    """YAML dumper that writes texts of several lines as literal blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML falls back to quotes where a block cannot hold the text, such as one with a control character.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockDumper.add_representer(str, _represent_text)


def launcher_file(
    source: ExportSource, release: str, command: str, lossy: tuple[str, ...], documents: list[dict[str, Any]]
) -> str:
    """Text of a launcher's YAML file: a header with the command that starts the file and with what the file leaves out,
    then its documents."""
    text = yaml.dump_all(documents, Dumper=_BlockDumper, sort_keys=False, width=10_000, allow_unicode=True)
    return fill(
        "launcher_task.yaml",
        origin=source.origin,
        description=remark(source.description),
        machines=remark(source.machines),
        release=release,
        start=f"Set every {SET_ME} below, then start it" if SET_ME in text else "Start it",
        command=remark(command),
        lossy=comment(lossy, "# "),
        document=text.rstrip(),
    )
