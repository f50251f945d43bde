"""Display name and explanation of each knob, which its field in `api_schemas/strategies` declares."""

from collections.abc import Mapping
from typing import NamedTuple, get_args

from shardtune.api_schemas.knobs import backend_knobs
from shardtune.api_schemas.strategies import Strategy, TrialConfig


class KnobWords(NamedTuple):
    """Display name and explanation of one knob (tuned parameter)."""

    help: str
    """Explanation of the knob in one sentence."""
    name: str = ""
    """Display name of the knob; if empty, the name is derived from the knob's own name."""
    values: Mapping[str, str] = {}
    """Display texts for those values of the knob that are not self-explanatory; a text follows the knob's name."""
    unit: str = ""
    """Unit that follows the knob's numbers."""


# Each text ends up in a `title` attribute on a page, so that it is plain text without markup but for backquotes.
KNOBS: dict[str, KnobWords] = {
    "backend": KnobWords("The library that distributes the training."),
    **{
        name: KnobWords(knob.help, knob.name, knob.value_names, knob.unit)
        for name, knob in backend_knobs((TrialConfig, *get_args(get_args(Strategy)[0]))).items()
    },
}

# Words whose spelling in a knob's name is not how a person writes them; all others are used as they are.
_WORD_SPELLINGS = {
    "dp": "DP",
    "ddp": "DDP",
    "mb": "MiB",
    "cpu": "CPU",
    "hpz": "hpZ",
    "fsdp1": "FSDP1",
    "stage3": "stage 3",
    "param": "parameter",
}


def knob_name(name: str) -> str:
    """Return the display name of a knob (tuned parameter). It is for people only: stored configurations use the knob's
    own name."""
    display_name = KNOBS[name].name if name in KNOBS else ""
    return display_name or " ".join(_WORD_SPELLINGS.get(word, word) for word in name.split("_"))


def knob_help(name: str) -> str:
    """Explain a knob (tuned parameter) in a sentence; empty for a knob that no longer exists."""
    # Stored configurations may hold knobs that this version has dropped.
    return KNOBS[name].help if name in KNOBS else ""
