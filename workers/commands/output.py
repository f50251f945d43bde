"""Output of the worker's commands on standard output."""

import json
from typing import Any


def print_fields(value: dict[str, Any], as_json: bool) -> None:
    """Print the fields of a result as one JSON object, or as one line for each field that has a value."""
    if as_json:
        print(json.dumps(value))
        return
    for name, content in value.items():
        if content not in (None, [], {}):
            print(f"{name}: {json.dumps(content)}")
