"""Keys of a model's `config.json`: aliases that transformers accepts, and keys that look like misspelt ones."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_GPT = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
# transformers 5.17, `attribute_map` of each configuration; it writes Qwen3's experts under the other name.
_ALIASES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {**_GPT, "max_position_embeddings": "n_positions"},
    "mpt": {"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    "mixtral": {"num_experts": "num_local_experts"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
}
"""Aliases of keys in `config.json` by model family: alias, and the key used in the family's published files."""
_SYNONYMS = (
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    ("hidden_size", "n_embd", "d_model"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ("num_local_experts", "num_experts", "n_routed_experts"),
)
"""Groups of keys that architectures use for one model dimension; each architecture reads one key of a group."""
# Published files hold many keys that nobody reads, and none of those is so similar to one that is read.
_CLOSE = 0.9
"""Similarity (by `difflib`) to a known key from which an unknown key counts as a misspelling: a letter or two off."""


class WatchedConfig(dict[str, Any]):
    """Content of a model's config.json, under the key names of published files, that records which keys the program reads."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        aliases = _ALIASES.get(str(config.get("model_type")), {})
        self._original_config = config
        super().__init__({aliases.get(key, key): value for key, value in config.items()} | _as_published(config))
        self.read_keys: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Value of a key in the model's configuration; the key is recorded as read."""
        self.read_keys.add(key)
        return super().get(key, default)

    def unknown_keys(self) -> tuple[str, ...]:
        """Messages about keys of the model's configuration that were not read and look like a misspelling of a key that
        was."""
        suspects = ((key, similar_key(key, self.read_keys)) for key in self if key not in self.read_keys)
        return tuple(
            f"{key} in the model's config is not read; did you mean {intended}?"
            for key, intended in suspects
            if intended is not None
        )

    def check_names(self) -> None:
        """Reject a configuration that gives one model dimension under two keys with different values, after the
        configuration was read.

        Raises:
            ValueError: names both keys, and the key that the architecture reads.
        """
        for names in _SYNONYMS:
            read_name = next(
                (name for name in names if name in self.read_keys and super(WatchedConfig, self).get(name)), None
            )
            for name in names:
                value = self._original_config.get(name)
                if read_name is not None and value is not None and value != self[read_name]:
                    raise ValueError(
                        f"{name} ({value!r:.100}) contradicts {read_name} ({self[read_name]}), which is what "
                        f"{self['model_type']} reads; remove {name}, or correct {read_name}"
                    )


def similar_key(key: str, keys: Iterable[str]) -> str | None:
    """Known key of which an unknown key looks like a misspelling, None where there is none."""
    return next(iter(difflib.get_close_matches(key, list(keys), 1, _CLOSE)), None)


def _as_published(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the configuration by published key name; a published name wins over its alias where both are given."""
    published_names = _ALIASES.get(str(config.get("model_type")), {}).values()
    return {name: config[name] for name in published_names if name in config}
