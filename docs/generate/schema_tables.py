"""Tables of the fields of JSON objects, from the OpenAPI document: study file, knobs and everything that REST sends."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from docs.generate.context import PageContext
from docs.generate.markdown import anchored_code, described, heading, paragraphs, slug, table
from docs.generate.sources import openapi
from docs.generate.value_types import default_fact, value_type

_ANY_JSON = "JsonValue"


def schemas() -> dict[str, Mapping[str, Any]]:
    """Schemas of the OpenAPI document by name."""
    components: dict[str, Mapping[str, Any]] = openapi()["components"]["schemas"]
    return components


def anchor(name: str) -> str:
    """Anchor of a schema's table."""
    return f"schema-{slug(name)}"


def link(context: PageContext, name: str, here: Iterable[str] = ()) -> str:
    """Name of a schema, linked to its table: on this page if `here` has it, else where configurations or all schemas are."""
    if name == _ANY_JSON:
        return "any JSON value"
    if name in here:
        return f"[{name}](#{anchor(name)})"
    section = "configuration" if name in _reachable(_configuration()) else "schemas"
    address = context.link_to(section, anchor(name)) or context.link_to("schemas", anchor(name))
    return f"[{name}]({address})" if address else f"`{name}`"


def study_file(context: PageContext) -> str:
    """Fields of a study file and of the objects in it, but for configurations, which have a section of their own."""
    return _tables(context, _reachable(_study(), without=frozenset({_configuration()})))


def configuration(context: PageContext) -> str:
    """Fields of a training configuration and of each strategy: the values that a search chooses from."""
    return _tables(context, _reachable(_configuration()))


def some_schemas(context: PageContext, *names: str) -> str:
    """Tables of the named schemas.

    Raises:
        ValueError: names none, or one that the OpenAPI document lacks.
    """
    unknown = [name for name in names if name not in schemas()]
    if unknown or not names:
        raise ValueError(f"schema ({', '.join(unknown) or 'no name'}) must be one of {', '.join(sorted(schemas()))}")
    return _tables(context, dict.fromkeys(names, ""))


def all_schemas(context: PageContext) -> str:
    """Tables of every schema, in alphabetical order."""
    return _tables(context, dict.fromkeys(sorted(schemas()), ""))


def _tables(context: PageContext, titles: Mapping[str, str]) -> str:
    """A table for each schema; `titles` has the field that holds it, by its name."""
    return paragraphs(*(_schema(context, name, titles) for name in titles if name != _ANY_JSON))


def _schema(context: PageContext, name: str, titles: Mapping[str, str]) -> str:
    schema = schemas()[name]

    def linked(other: str) -> str:
        return link(context, other, titles)

    title = heading(2, f"`{titles[name]}`: {name}" if titles[name] else name, anchor(name))
    if "properties" not in schema:
        return paragraphs(title, schema.get("description", ""), f"Value: {value_type(schema, linked)}.")
    required = schema.get("required", ())
    prefix = slug(name)
    rows = [
        (
            anchored_code(field, f"{prefix}-{slug(field)}"),
            described(
                entry.get("description", ""),
                value_type(entry, linked),
                default_fact(entry, is_required=field in required),
            ),
        )
        for field, entry in schema["properties"].items()
    ]
    return paragraphs(title, schema.get("description", ""), table(("field", "meaning"), rows))


def _study() -> str:
    """Name of the schema that the body of a new study follows."""
    body = openapi()["paths"]["/v1/studies"]["post"]["requestBody"]
    return _name_of(body["content"]["application/json"]["schema"])


def _configuration() -> str:
    """Name of the schema of a training configuration: the first that a study's baseline may be."""
    return _name_of(schemas()[_study()]["properties"]["baseline"]["anyOf"][0])


def _name_of(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


@cache
def _reachable(root: str, without: frozenset[str] = frozenset()) -> Mapping[str, str]:
    """The schema and every one that it refers to, each with the path of the field that holds it, nearest first."""
    paths: dict[str, str] = {}
    waiting = [(root, "")]
    while waiting:
        name, path = waiting.pop(0)
        if name in paths or name in {_ANY_JSON, *without}:
            continue
        paths[name] = path
        for field, entry in schemas()[name].get("properties", {}).items():
            waiting += [(other, f"{path}.{field}".lstrip(".")) for other in _references(entry)]
    return paths


def _references(schema: Any) -> list[str]:
    if isinstance(schema, Mapping):
        # Examples and defaults are values, whose keys may be `$ref`, too.
        parts = [value for key, value in schema.items() if key not in {"$ref", "examples", "default", "discriminator"}]
        own = [_name_of(schema)] if "$ref" in schema else []
        return own + [name for part in parts for name in _references(part)]
    if isinstance(schema, list):
        return [name for part in schema for name in _references(part)]
    return []
