"""Read a model from the Hugging Face hub on the user's machine, with the user's own cache, mirror and token.

`huggingface_hub` reads `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_HOME` and the token (`HF_TOKEN`, or that of `hf auth login`);
this module never sees the token.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shardtune.api_schemas.training.hub_source import HubSource, is_commit
from shardtune.api_schemas.training.models import LONGEST_CONFIG, ModelSpec
from shardtune.service.cli.errors import InputError, PlatformFailure
from shardtune.service.cli.lazy_module import LazyModule
from shardtune.service.hub import missing_models, model_files

if TYPE_CHECKING:
    import huggingface_hub
    import huggingface_hub.utils.tqdm as bars
    from huggingface_hub import errors
else:
    huggingface_hub, errors, bars = (
        LazyModule("huggingface_hub"),
        LazyModule("huggingface_hub.errors"),
        LazyModule("huggingface_hub.utils.tqdm"),
    )

_LIMIT_S = 40.0
"""Maximum seconds for reading a model from the hub; huggingface_hub 2.4 alone repeats failed requests for 23
seconds."""
_HOW_TO_LOG_IN = "log in with an account that may read it (`hf auth login`, or HF_TOKEN)"


def read_model(source: HubSource) -> ModelSpec:
    """Read the `config.json` of a repository on the Hugging Face hub. The field `hub.revision` of the returned model
    is the commit that was read.

    Raises:
        InputError: the model does not exist, may not be read or cannot be trained; the message names value and
        remedy.
        PlatformFailure: the hub did not answer, and the file is not in the user's cache.
    """
    results: list[ModelSpec] = []
    failures: list[Exception] = []

    def read() -> None:
        try:
            results.append(_download(source))
        except Exception as error:  # noqa: BLE001  # a border: raised below, in the caller's thread.
            failures.append(error)

    # A daemon: huggingface_hub has no limit on the whole download, and the command must not wait for it at its end.
    reader = threading.Thread(target=read, name="hub", daemon=True)
    reader.start()
    reader.join(_LIMIT_S)
    if failures:
        raise failures[0]
    if not results:
        raise PlatformFailure(missing_models.unreachable(source, f"the hub did not answer within {_LIMIT_S:g} s"))
    return results[0]


def _download(source: HubSource) -> ModelSpec:
    try:
        return _with_hub_errors(source, lambda: _read_config(source))
    except ValueError as error:
        raise InputError(str(error)) from None


def _read_config(source: HubSource) -> ModelSpec:
    # Otherwise it sends torch's version, and asks the hub for a list of coding agents (huggingface_hub 2.4).
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # One small file: its bar would only cover the command's own lines.
    bars.disable_progress_bars()
    try:
        planned = huggingface_hub.hf_hub_download(source.id, model_files.CONFIG, revision=source.revision, dry_run=True)
    except errors.RemoteEntryNotFoundError:
        raise _without_config(source) from None
    if planned.file_size is not None and planned.file_size > LONGEST_CONFIG:
        raise model_files.oversized(source, planned.file_size)
    # By the name that the user gave, not by the commit: the cache then finds it under that name without the hub.
    path = Path(huggingface_hub.hf_hub_download(source.id, model_files.CONFIG, revision=source.revision))
    pinned = path.parent.name
    if not is_commit(pinned):
        raise PlatformFailure(missing_models.unreachable(source, "the hub did not name the commit of the file"))
    # Measured again: the size above is what the server said.
    if path.stat().st_size > LONGEST_CONFIG:
        raise model_files.oversized(source, path.stat().st_size)
    return model_files.model_of(source, pinned, path.read_text(encoding="utf-8", errors="replace"))


def _without_config(source: HubSource) -> ValueError:
    """Return the error for a hub repository that has no `config.json`. If the repository holds an adapter, the error
    names its base model."""
    try:
        path = huggingface_hub.hf_hub_download(source.id, model_files.ADAPTER, revision=source.revision)
    except errors.RemoteEntryNotFoundError:
        return model_files.missing_config(source)
    return model_files.adapter_error(source, Path(path).read_text(encoding="utf-8", errors="replace"))


def _with_hub_errors(source: HubSource, read: Callable[[], ModelSpec]) -> ModelSpec:
    """Read a model from the hub. Errors of huggingface_hub become errors of Shardtune, which show no URL and no HTTP
    header."""
    try:
        return read()
    # Gated first: it is a subclass of the next.
    except errors.GatedRepoError:
        raise missing_models.gated(source, _HOW_TO_LOG_IN) from None
    except errors.RepositoryNotFoundError:
        raise missing_models.unknown(source, f"{_HOW_TO_LOG_IN}, or give the path of a folder that exists") from None
    except errors.RevisionNotFoundError:
        raise missing_models.no_revision(source) from None
    except errors.HFValidationError:
        raise ValueError(f"model ({source}) is no id of the hub; give OWNER/NAME, such as Qwen/Qwen3-8B") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        reason = "the hub did not answer, and it is not in the cache of huggingface_hub"
        if huggingface_hub.constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set, and it is not in the cache of huggingface_hub"
        raise PlatformFailure(missing_models.unreachable(source, reason)) from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise PlatformFailure(missing_models.unreachable(source, f"{type(error).__name__} of the hub")) from None
