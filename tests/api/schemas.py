"""Validates events and objects against OpenAI's schemas, after undoing the listed extensions."""

import copy
import gzip
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

Json = dict[str, Any]

DATA = Path(__file__).parents[1] / "data"
DOCUMENT = json.loads(gzip.decompress((DATA / "openai_api_subset.json.gz").read_bytes()))
EXTENSIONS = json.loads(
    files("sessiond.api.protocol").joinpath("schema_extensions.json").read_text()
)
_REGISTRY = Registry().with_resource(
    "urn:openai", Resource.from_contents(DOCUMENT, default_specification=DRAFT202012)
)
# each event by its own schema, which the socket's differ from by `stream_id` only: among fifty
# alternatives a message would say nothing
_EVENT_SCHEMAS = {
    schema["properties"]["type"]["enum"][0]: name
    for name, schema in DOCUMENT["components"]["schemas"].items()
    if name.startswith("Response")
    and name.endswith("Event")
    and "enum" in schema.get("properties", {}).get("type", {})
}


def validate(value: Json, schema: str) -> None:
    """Validate against one of the document's schemas, extensions undone first."""
    strict(standard(value), schema)


def validate_event(event: Json) -> None:
    """Validate an event of a socket or a stream; our own kinds must be listed ones."""
    kind = event["type"]
    if kind in EXTENSIONS["events"]:
        return
    schema = "ResponseWsError" if kind == "error" else _EVENT_SCHEMAS[kind]
    validate(event, schema)
    assert isinstance(event.get("stream_id", ""), str)


def strict(value: Json, schema: str) -> None:
    """Validate as it is."""
    _validator(schema).validate(value)


@cache
def _validator(schema: str) -> Draft202012Validator:
    reference = {"$ref": f"urn:openai#/components/schemas/{schema}"}
    return Draft202012Validator(reference, registry=_REGISTRY)


def standard(value: Json) -> Json:
    """Undo the extensions in a response object, or in the one inside an event."""
    value = copy.deepcopy(value)
    response = value.get("response", value)
    if response.get("object") == "response":
        for name in EXTENSIONS["properties"]["response"]:
            response.pop(name, None)
        for path, extra in EXTENSIONS["values"].items():
            outer, inner = path.split(".")
            holder = response.get(outer) or {}
            if holder.get(inner) in extra:
                holder[inner] = EXTENSIONS["stands_for"][path]
    return value
