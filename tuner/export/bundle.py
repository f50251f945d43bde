"""The files of one export by name."""

import json

from api_schemas.strategies import ZeroConfig
from api_schemas.studies import Contender, Study
from tuner.export import accelerate, launch, snippet
from tuner.export.subject import Subject

NVME_PLACEHOLDER = "/path/on/nvme"
"""Where offloaded state goes is the user's to choose; the worker's own folder means nothing elsewhere."""


def files(study: Study, contender: Contender) -> dict[str, str]:
    """Relative file name → content: `config.json`, `launch.sh`, `accelerate.yaml`, `train_snippet.py`, and for ZeRO
    `ds_config.json`.

    Raises:
        ValueError: the study has measured nothing yet.
    """
    subject = Subject.of(study, contender)
    contents = {
        "config.json": json.dumps(subject.task().model_dump(mode="json"), indent=2) + "\n",
        "launch.sh": launch.script(subject),
        "accelerate.yaml": accelerate.document(subject),
        "train_snippet.py": snippet.source(subject),
    }
    strategy = subject.config.strategy
    if isinstance(strategy, ZeroConfig):
        section = strategy.to_deepspeed(
            subject.workload, subject.config.micro_batch, subject.accumulation, NVME_PLACEHOLDER
        )
        contents["ds_config.json"] = json.dumps(section, indent=2) + "\n"
    return contents
