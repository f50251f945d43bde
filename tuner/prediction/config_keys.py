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
_SAME = (
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    ("hidden_size", "n_embd", "d_model"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ("num_local_experts", "num_experts", "n_routed_experts"),
)
"""Names that architectures have for one dimension; each reads one of them."""
_CLOSE = 0.9
"""Of `difflib`: a letter or two. Published files hold many keys that nobody reads, and none of those is so near one that is."""


class WatchedConfig(dict[str, Any]):
    """A configuration under the names of published files, which remembers what was asked of it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        aliases = _ALIASES.get(str(config.get("model_type")), {})
        self._given = config
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

    def check_names(self) -> None:
        """Reject a dimension that stands under two names with two values, once the configuration was read.

        Raises:
            ValueError: names both, and the one that the architecture reads.
        """
        for names in _SAME:
            counts = next((name for name in names if name in self.asked and super(WatchedConfig, self).get(name)), None)
            for name in names:
                value = self._given.get(name)
                if counts is not None and value is not None and value != self[counts]:
                    raise ValueError(
                        f"{name} ({value!r:.100}) contradicts {counts} ({self[counts]}), which is what "
                        f"{self['model_type']} reads; remove {name}, or correct {counts}"
                    )


def near(key: str, known: Iterable[str]) -> str | None:
    """The known key that this one is nearly."""
    return next(iter(difflib.get_close_matches(key, list(known), 1, _CLOSE)), None)


def _as_published(config: Mapping[str, Any]) -> dict[str, Any]:
    """Where both names stand, the published one counts."""
    taken = _ALIASES.get(str(config.get("model_type")), {}).values()
    return {name: config[name] for name in taken if name in config}
