"""Compare the attention implementation that a fine-tuning tool's file names with the workload's."""

from collections.abc import Mapping
from typing import get_args

from shardtune.api_schemas.training.workload import Workload
from shardtune.tuner.baseline.section import Section

_KEYS = ("attn_implementation", "attn_impl", "flash_attn")
"""Key that names the implementation in axolotl, ms-swift and LLaMA-Factory."""
_NAMES: Mapping[str, str] = {"fa2": "flash_attention_2", "flash_attn": "flash_attention_2", "disabled": "eager"}
"""Names of transformers for words that only LLaMA-Factory (0.9.5) and ms-swift (4.6) use."""


def note(top: Section, workload: Workload, notes: list[str]) -> None:
    """Add a note if the file names another attention implementation than the workload's, with which all trials run. A
    file that names none leaves the choice to its tool."""
    for key in _KEYS:
        word = top.word(key)
        stated = _NAMES.get(word or "", word)
        if stated in (None, "auto", workload.attention):
            continue
        offered = get_args(Workload.model_fields["attention"].annotation)
        remedy = f": state attention {stated!r} in the workload to measure it" if stated in offered else ""
        notes.append(
            f"{top.name(key)} ({word!r:.60}) is not applied; measured with the workload's attention "
            f"({workload.attention!r}){remedy}"
        )
