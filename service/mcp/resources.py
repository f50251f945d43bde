"""Resources: pages of the documentation, results of studies, and the OpenAPI document of the service."""

import json

from mcp.types import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)
from pydantic import TypeAdapter, ValidationError

from shardtune.api_schemas.names import StudyId
from shardtune.api_schemas.studies.study import Study
from shardtune.service.mcp import documents
from shardtune.service.mcp.errors import ToolRejected, rejections
from shardtune.service.mcp.product import Product

OPENAPI = "shardtune://openapi"
_STUDY_PREFIX = "shardtune://studies/"
_STUDY_ID: TypeAdapter[str] = TypeAdapter(StudyId)
_JSON, _MARKDOWN = "application/json", "text/markdown"


def list_resources(has_service: bool) -> ListResourcesResult:
    """List the pages of the documentation and, if there is a service, its OpenAPI document."""
    pages = [
        Resource(uri=page.uri, name=page.uri.removeprefix(documents.PREFIX), title=page.title, mime_type=_MARKDOWN)
        for page in documents.documents().values()
    ]
    openapi = Resource(
        uri=OPENAPI, name="openapi", title="OpenAPI document of the service", mime_type=_JSON, description="REST API."
    )
    return ListResourcesResult(resources=[*pages, *([openapi] if has_service else [])])


def list_templates(has_service: bool) -> ListResourceTemplatesResult:
    """Return a list with the URI template of a study; empty if there is no service."""
    study = ResourceTemplate(
        uri_template=_STUDY_PREFIX + "{study_id}",
        name="study",
        title="Study with its result",
        description="State, progress and result of a study, as the REST API answers it.",
        mime_type=_JSON,
    )
    return ListResourceTemplatesResult(resource_templates=[study] if has_service else [])


def read(product: Product, uri: str) -> ReadResourceResult:
    """Read a resource.

    Raises:
        ToolRejected: there is no such resource, or the key may not read it.
    """
    media, text = _content(product, uri)
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, text=text, mime_type=media)])


def _content(product: Product, uri: str) -> tuple[str, str]:
    if uri.startswith(documents.PREFIX):
        return _MARKDOWN, documents.read(uri)
    with rejections(Study):
        if uri == OPENAPI:
            return _JSON, json.dumps(product.service("resources").openapi())
        if (study_id := _study_id(uri)) is not None:
            return _JSON, product.service("resources").study(study_id).model_dump_json()
    raise ToolRejected(
        f"uri ({uri[:200]}) is no resource here; the resources are {documents.PREFIX}…, {OPENAPI} and {_STUDY_PREFIX}ID"
    )


def _study_id(uri: str) -> str | None:
    """Return the id of the study that a URI names; None if it names no study. An id such as `..` would make the
    request to the service one for another address."""
    try:
        return _STUDY_ID.validate_python(uri.removeprefix(_STUDY_PREFIX)) if uri.startswith(_STUDY_PREFIX) else None
    except ValidationError:
        return None
