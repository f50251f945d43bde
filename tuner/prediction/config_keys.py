"""Keys of a model's `config.json`: other names that transformers takes for them, and names that are nearly one."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_GPT = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
_ALIASES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {**_GPT, "max_position_embeddings": "n_positions"},
    "mpt": {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    "mixtral": {"num_experts": "num_local_experts"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
}
"""By family: another name, and the one of its published files. transformers 5.17, `attribute_map` of each configuration; it writes
Qwen3's experts under the other name."""
_CLOSE = 0.9
"""Of `difflib`: a letter or two. Published files hold many keys that nobody reads, and none of those is so near one that is."""


class WatchedConfig(dict[str, Any]):
    """A configuration under the names of published files, which remembers what was asked of it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        aliases = _ALIASES.get(str(config.get("model_type")), {})
        super().__init__({aliases.get(key, key): value for key, value in config.items()} | _as_published(config))
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value."""
        self.asked.add(key)
        return super().get(key, default)

    def strays(self) -> tuple[str, ...]:
        """A note on each key that was not asked for and is nearly one that was."""
        found = ((key, near(key, self.asked)) for key in self if key not in self.asked)
        return tuple(
            f"{key} in the model's config is not read; did you mean {meant}?"
            for key, meant in found
            if meant is not None
        )


def near(key: str, known: Iterable[str]) -> str | None:
    """The known key that this one is nearly."""
    return next(iter(difflib.get_close_matches(key, list(known), 1, _CLOSE)), None)


def _as_published(config: Mapping[str, Any]) -> dict[str, Any]:
    """Where both names stand, the published one counts."""
    taken = _ALIASES.get(str(config.get("model_type")), {}).values()
    return {name: config[name] for name in taken if name in config}
