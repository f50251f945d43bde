"""Fields in the OpenAPI document: each has a description, and an example that its own schema takes."""

import pytest
from jsonschema import Draft202012Validator

from shardtune.service.app import create_app
from shardtune.service.settings import Settings


@pytest.fixture(scope="module")
def document():
    return create_app(Settings(), migrate=False).openapi()


def test_every_field_has_a_description_and_an_example_that_is_one(document):
    faults, fields = [], 0
    for name, schema in document["components"]["schemas"].items():
        for field, stated in schema.get("properties", {}).items():
            fields += 1
            if not stated.get("description") or stated.get("examples") in (None, [], [None]):
                faults.append(f"{name}.{field} says nothing")
                continue
            check = Draft202012Validator({**stated, "components": document["components"]})
            faults += [f"{name}.{field}: {error.message}" for error in check.iter_errors(stated["examples"][0])]
    assert faults == [] and fields > 800


def test_every_parameter_has_a_description_and_an_example(document):
    silent = [
        f"{method} {path} {parameter['name']}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description") or parameter.get("example") is None
    ]
    assert silent == []
