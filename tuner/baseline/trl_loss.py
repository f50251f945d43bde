"""Read how TRL's SFTTrainer computes the loss of a file of SFTConfig, which depends on TRL's release (0.29 to 1.16)."""

import math
import re
from importlib import metadata
from typing import NamedTuple

from shardtune.api_schemas.strategies.losses import DEFAULT_CHUNK
from shardtune.api_schemas.training.models import ModelSpec
from shardtune.tuner.baseline import trainer_sections
from shardtune.tuner.baseline.section import Section

_TYPE, _VERSION, _LIGER, _LIGER_CONFIG = "loss_type", "trl_version", "use_liger_kernel", "liger_kernel_config"
_CHUNKED, _CHUNKED_BY_DEFAULT, _TILED = (1, 4), (1, 7), (1, 15)
"""First releases of TRL that know `chunked_nll`, have it as default, and compute every loss in tiles of logits."""
_CHUNK = 256
"""Tokens whose logits exist at once under `chunked_nll` (TRL 1.4 to 1.14)."""
_TILE_TOKENS, _TILE_WORDS = 4096, 32_768
"""Tokens, and words of the vocabulary, in a tile of logits (TRL 1.15 and later)."""
_OTHER_METHODS = frozenset(["f_divergence_type", "precompute_ref_log_probs", "sync_ref_model", "desirable_weight"])
_OTHER_METHODS |= {"undesirable_weight", "num_generations", "max_completion_length", "scale_rewards"}
_OTHER_METHODS |= {"center_rewards_coefficient", "teacher_model_name_or_path"}
"""Keys of TRL's DPO, KTO, GRPO, RLOO, reward and distillation trainers that neither SFTConfig nor TrainingArguments has."""
_OTHERS_BESIDE_TRL = frozenset(["beta", "loss_weights", "num_iterations", "use_vllm"])
"""Further keys of these trainers, which count only in a file with a key of TRL's own, since any script may have them."""


class _Release(NamedTuple):
    """Release of TRL for which a file is read."""

    number: tuple[int, int]
    name: str


_NEWEST = _Release((1, 16), "TRL 1.16 (assumed; trl_version names another)")


def installed_version() -> str | None:
    """Version of the package trl in this environment; None if it is not installed."""
    try:
        return metadata.version("trl")
    except metadata.PackageNotFoundError:
        return None


def read(top: Section, model: ModelSpec | None, notes: list[str]) -> tuple[Section, dict[str, object]]:
    """Copy of a TRL file without the keys that are read here, and the fields of the configuration that say how the loss
    is computed. A file without a key of TRL's own is returned as it is.

    Raises:
        ValueError: the file is for another method, or its loss is no cross entropy of the next token.
    """
    values, is_of_trl = top.values(), trainer_sections.is_of_trl(top.values())
    _check_method(top, _OTHER_METHODS | (_OTHERS_BESIDE_TRL if is_of_trl else frozenset()))
    if not is_of_trl:
        return top, {}
    release, has_liger = _release(top), bool(top.flag(_LIGER))
    loss_type = _loss_type(top, release, has_liger=has_liger)
    keys = {_TYPE, _VERSION}
    if release.number >= _TILED and has_liger:
        keys |= {_LIGER, _LIGER_CONFIG}
        notes.append(_liger_note(top, release))
    rest = top.with_values({key: value for key, value in values.items() if key not in keys})
    stated = "is absent" if top.get(_TYPE) is None else f"({top.word(_TYPE)})"
    said = f"{top.name(_TYPE)} {stated}: {release.name} computes"
    if release.number >= _TILED:
        return rest, _tiled(
            model, f"{said} logits in tiles of {_TILE_TOKENS:,} tokens and {_TILE_WORDS:,} words", notes
        )
    if loss_type == "chunked_nll":
        return rest, _chunked(model, _CHUNK, f"{said} the loss in chunks of {_CHUNK} tokens", "measured so", notes)
    # Liger's fused loss has a note of its own.
    if not has_liger:
        notes.append(f"{said} the logits of a whole micro batch; measured so")
    return rest, {}


def _liger_note(top: Section, release: _Release) -> str:
    """Note on Liger's kernels in the layers alone, without its fused loss, which TRL 1.15 and later reject."""
    kernels = top.values().get(_LIGER_CONFIG)
    if isinstance(kernels, dict) and top.section(_LIGER_CONFIG).flag(trainer_sections.FUSED_LOSS):
        raise ValueError(
            f"{top.name(_LIGER_CONFIG)}.{trainer_sections.FUSED_LOSS} (true) is rejected by {release.name}; drop it, or give "
            "the trl_version that you train with"
        )
    return (
        f"{top.name(_LIGER)} (true) is not applied: trials have none of its kernels, which {release.name} has in the "
        "layers alone"
    )


def _check_method(top: Section, keys: frozenset[str]) -> None:
    """Reject a file of another trainer of TRL, such as DPO's, by the keys of such trainers."""
    key = next((key for key in top.values() if key in keys and top.get(key) is not None), None)
    if key is not None:
        raise ValueError(
            f"{top.name(key)} ({top.get(key)!r:.60}) is no key of TRL's supervised fine-tuning but of a method that no trial "
            "trains; drop it, or bring your own code (docs/how-to/own-code.md)"
        )


def _release(top: Section) -> _Release:
    stated = top.text(_VERSION)
    if stated is not None:
        number = _number(stated)
        if number is None:
            raise ValueError(f'{top.name(_VERSION)} ({stated!r:.60}) is no release of TRL; give one, such as "1.16.0"')
        return _Release(number, f"TRL {stated}")
    installed = installed_version()
    number = None if installed is None else _number(installed)
    return _NEWEST if number is None else _Release(number, f"TRL {installed} (installed here)")


def _number(version: str) -> tuple[int, int] | None:
    parts = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})([.a-z+][0-9a-z.+]{0,30})?", version)
    return None if parts is None else (int(parts[1]), int(parts[2]))


def _loss_type(top: Section, release: _Release, *, has_liger: bool) -> str:
    """Value of `loss_type`, by file or TRL's default."""
    name, stated = top.name(_TYPE), top.word(_TYPE)
    if stated is None:
        return "chunked_nll" if release.number >= _CHUNKED_BY_DEFAULT and not has_liger else "nll"
    if stated not in ("nll", "chunked_nll"):
        raise ValueError(f"{name} ({stated!r:.60}) changes what is trained, which no trial does; use nll, or drop it")
    is_beside_liger = has_liger and release.number < _TILED
    if stated == "chunked_nll" and (release.number < _CHUNKED or is_beside_liger):
        beside = f" beside {_LIGER}" if is_beside_liger else ""
        raise ValueError(
            f"{name} ('chunked_nll') is rejected{beside} by {release.name}; use nll, or give the trl_version that you train with"
        )
    return stated


def _tiled(model: ModelSpec | None, said: str, notes: list[str]) -> dict[str, object]:
    """Chunks with about as many logits as a tile, whose products with the output head are as many as the tiles'."""
    words = None if model is None else model.trained_config.get("vocab_size")
    if isinstance(words, int) and not isinstance(words, bool) and words > 0:
        chunk = max(16, _TILE_TOKENS // math.ceil(words / _TILE_WORDS))
        measured = f"measured in chunks of {chunk:,} tokens, with about as many logits at once"
    else:
        chunk, measured = DEFAULT_CHUNK, f"measured in chunks of {DEFAULT_CHUNK:,} tokens, Shardtune's default"
    return _chunked(model, chunk, said, measured, notes)


def _chunked(model: ModelSpec | None, chunk: int, said: str, measured: str, notes: list[str]) -> dict[str, object]:
    reason = _why_whole(model)
    if reason is not None:
        notes.append(f"{said}; measured with the logits of a whole micro batch, since {reason}")
        return {}
    notes.append(f"{said}; {measured}")
    return {"loss": "chunked", "loss_chunk": chunk}


def _why_whole(model: ModelSpec | None) -> str | None:
    """Reason why trials cannot compute this model's loss in chunks, as far as its configuration shows one; None if it
    shows none."""
    if model is None:
        return None
    if model.is_own:
        return "your own code computes the loss"
    return "the model adds its router's loss" if model.trained_config.get("output_router_logits") else None
