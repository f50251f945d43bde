"""Read and record the corpus: `tests/protocol/versions/N/messages.json` and `schemas.json`.

`python -m tests.protocol.corpus` records the present version. It refuses a version that a released tag contains.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from shardtune.api_schemas.protocol import PROTOCOL_VERSION, ProtocolMessage
from shardtune.api_schemas.trials import leases
from tests.protocol.sample_messages import sample_messages

ROOT = Path(__file__).parents[2]
VERSIONS = Path(__file__).parent / "versions"
_WORDS = ("title", "description", "examples")
"""Keys of a JSON schema that say nothing about what is valid."""


def message_types() -> dict[str, type[ProtocolMessage]]:
    """Return every message of the protocol by its name."""
    return {kind.__name__: kind for kind in vars(leases).values() if _is_message(kind)}


def _is_message(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ProtocolMessage) and kind is not ProtocolMessage


def present_schemas() -> dict[str, Any]:
    """Return the JSON schema of every message as it is now, without words for people."""
    return {name: _structure(kind.model_json_schema()) for name, kind in sorted(message_types().items())}


def present_messages() -> dict[str, Any]:
    """Return the sample messages as they are written now."""
    return {
        name: {"type": type(message).__name__, "content": message.written_for(PROTOCOL_VERSION)}
        for name, message in sample_messages().items()
    }


def _structure(schema: Any, *, are_names: bool = False) -> Any:
    """Remove titles, descriptions and examples; a field may be called like one of these."""
    if isinstance(schema, list):
        return [_structure(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _structure(value, are_names=key in ("properties", "$defs") and not are_names)
        for key, value in schema.items()
        if are_names or key not in _WORDS
    }


def recorded_versions() -> list[int]:
    """Return the protocol versions that have a corpus."""
    return sorted(int(folder.name) for folder in VERSIONS.iterdir() if folder.name.isdecimal())


def recorded(version: int, name: str) -> dict[str, Any]:
    """Return `messages` or `schemas` as recorded of a version."""
    content: dict[str, Any] = json.loads((VERSIONS / str(version) / f"{name}.json").read_text())
    return content


def releases_with(version: int) -> dict[str, str]:
    """Return the corpus's git tree of each released tag that contains a version; empty outside of a checkout."""
    folder = (VERSIONS / str(version)).relative_to(ROOT)
    tags = _git("tag", "--list", "v*").split()
    trees = {tag: _git("rev-parse", "--verify", "--quiet", f"{tag}:{folder}").strip() for tag in tags}
    return {tag: tree for tag, tree in trees.items() if tree}


def tree_of_working_copy(version: int) -> str:
    """Return the git tree of a version's corpus as committed; a difference of the working copy shows as another text."""
    folder = str((VERSIONS / str(version)).relative_to(ROOT))
    return _git("rev-parse", f"HEAD:{folder}").strip() + _git("status", "--porcelain", "--", folder)


def _git(*arguments: str) -> str:
    completed = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return completed.stdout if completed.returncode == 0 else ""


def main() -> int:
    """Record the corpus of the present version; returns the exit code."""
    released = releases_with(PROTOCOL_VERSION)
    if released:
        print(
            f"PROTOCOL_VERSION ({PROTOCOL_VERSION}) is part of {', '.join(released)} and does not change any more; "
            "increase it in api_schemas/protocol.py",
            file=sys.stderr,
        )
        return 1
    folder = VERSIONS / str(PROTOCOL_VERSION)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("messages", present_messages()), ("schemas", present_schemas())):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    print(f"recorded {len(present_messages())} messages of version {PROTOCOL_VERSION} in {folder.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
