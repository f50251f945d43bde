"""Name of a model on the Hugging Face hub: repository and revision, as people write them (`OWNER/NAME@REVISION`)."""

import re
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from shardtune.api_schemas.base import Schema

DEFAULT_REVISION = "main"
_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_WRITTEN = re.compile(rf"{_PART}/{_PART}(@.*)?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

HubId = Annotated[str, Field(max_length=96, pattern=rf"^{_PART}/{_PART}$", examples=["Qwen/Qwen3-8B"])]
Revision = Annotated[str, Field(max_length=100, pattern=rf"^{_PART}(/{_PART})*$")]


class HubSource(Schema):
    """Model on the Hugging Face hub: the repository, and the revision of it from which the model's `config.json` is
    read."""

    id: HubId
    """Id of the repository: `OWNER/NAME`, such as `meta-llama/Llama-3.1-8B`."""
    revision: Revision = DEFAULT_REVISION
    """Branch, tag or commit of the repository. In a stored study it is the commit (40 hexadecimal digits) from which
    the configuration was read."""

    @model_validator(mode="before")
    @classmethod
    def _accept_text(cls, value: Any) -> Any:
        """Accept the text `OWNER/NAME` or `OWNER/NAME@REVISION` in place of an object."""
        if not isinstance(value, str):
            return value
        repository, separator, revision = value.partition("@")
        return {"id": repository} | ({"revision": revision} if separator else {})

    @field_validator("id", "revision")
    @classmethod
    def _leads_nowhere_else(cls, name: str) -> str:
        # The name becomes part of an address.
        if ".." in name or name.endswith((".", "-", ".git")):
            raise ValueError(
                f"({name!r}) is no name of the hub: it holds '..', or ends with '.', '-' or '.git'; correct it"
            )
        return name

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which always has the same content."""
        return _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return self.id if self.revision == DEFAULT_REVISION else f"{self.id}@{self.revision}"


def is_commit(text: str) -> bool:
    """Whether a text is the full hash of a commit (40 hexadecimal digits)."""
    return _COMMIT.fullmatch(text) is not None


def looks_like_id(text: str) -> bool:
    """Whether a text reads like a model's name on the hub, `OWNER/NAME` with or without `@REVISION`."""
    return _WRITTEN.fullmatch(text) is not None


WrittenHubSource = Annotated[str, Field(max_length=200, pattern=rf"^{_PART}/{_PART}(@{_PART}(/{_PART})*)?$")]
"""Repository of the Hugging Face hub as one text, such as `Qwen/Qwen3-8B` or `Qwen/Qwen3-8B@main`."""
