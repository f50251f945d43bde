"""Keys that the fine-tuning tools read, as `tuner/baseline/tools/fields/` keeps them: `python -m tests.support.values.tool_keys TOOL`
remakes the list of one tool, in an environment that has the tool at its own pins (`make test-consumers`)."""

import dataclasses
import datetime
import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "tuner/baseline/tools/fields"
PACKAGES = {"axolotl": "axolotl", "llama-factory": "llamafactory", "ms-swift": "ms-swift"}


def axolotl_keys() -> set[str]:
    schemas = importlib.import_module("axolotl.utils.schemas.config")
    fields = schemas.AxolotlInputConfig.model_fields
    return {*fields, *(field.validation_alias for field in fields.values() if isinstance(field.validation_alias, str))}


def llama_factory_keys() -> set[str]:
    parser = importlib.import_module("llamafactory.hparams.parser")
    return {field.name for kind in parser._TRAIN_ARGS for field in dataclasses.fields(kind) if field.init}


def ms_swift_keys() -> set[str]:
    arguments = importlib.import_module("swift.arguments").SftArguments
    # `ENV` sets variables before the ranks start.
    return {field.name for field in dataclasses.fields(arguments) if field.init} | {"ENV"}


MAKERS = {"axolotl": axolotl_keys, "llama-factory": llama_factory_keys, "ms-swift": ms_swift_keys}


def document(tool: str) -> dict[str, Any]:
    return {
        "tool": tool,
        "version": version(PACKAGES[tool]),
        "transformers": version("transformers"),
        "made_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "made_by": f"python -m tests.support.values.tool_keys {tool}",
        "keys": sorted(MAKERS[tool]()),
    }


if __name__ == "__main__":
    name = sys.argv[1]
    (FOLDER / f"{name.replace('-', '_')}.json").write_text(json.dumps(document(name), indent=1) + "\n")
