"""Assembles the document from operations, schemas and errors."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sessiond.api.openapi.answers import answer_schemas, error_schema
from sessiond.api.openapi.bodies import body_schemas
from sessiond.api.openapi.chat import chat_schemas
from sessiond.api.openapi.conversation_operations import CONVERSATION_OPERATIONS
from sessiond.api.openapi.operation import Operation, Parameter
from sessiond.api.openapi.server_operations import SERVER_OPERATIONS
from sessiond.api.openapi.words import STRING, integer, reference
from sessiond.api.protocol.resources import Json
from sessiond.errors import STATUS
from sessiond.quota import RATE_HEADERS

OPERATIONS = (*CONVERSATION_OPERATIONS, *SERVER_OPERATIONS)
KEY = "key"
_ABOUT = """\
Conversations with language models whose KV cache stays alive between turns. Responses, \
conversations, items and models have the shapes of OpenAI's API; `sessiond` in a response, \
sessions, health and `/admin` are this server's own."""


def openapi_document(
    version: str,
    *,
    context_policies: Mapping[str, Mapping[str, Any]],
    open_paths: Collection[str],
    asks_for_keys: bool,
    operations: Sequence[Operation] = OPERATIONS,
) -> Json:
    """Build the document.

    `context_policies`: parameter types by policy name; `open_paths`: paths that require no key;
    `asks_for_keys` False: keys are accepted everywhere and required nowhere.
    """
    paths: defaultdict[str, Json] = defaultdict(dict)
    for one in operations:
        paths[one.path][one.method] = _operation(one, is_open=one.path in open_paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sessiond",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{KEY: []}] if asks_for_keys else [{}, {KEY: []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(one.tag for one in operations)],
        "paths": dict(paths),
        "components": {
            "securitySchemes": {KEY: _key_scheme()},
            "headers": _headers(),
            "responses": {str(status): _refusal(status) for status in sorted({*STATUS.values()})},
            "schemas": {
                **answer_schemas(),
                **body_schemas(context_policies),
                **chat_schemas(),
                **{_error_name(status): error_schema(status) for status in STATUS.values()},
            },
        },
    }


def statuses_of(operation: Operation, *, is_open: bool) -> list[int]:
    """Return the error statuses that an operation may answer with."""
    found = {403, 500, *operation.refusals}
    if not is_open:
        found.add(401)
    if operation.parameters or operation.body:
        found.add(400)
    if operation.body:
        found.add(413)
    if "{" in operation.path:
        found.add(404)
    return sorted(found - operation.other_answers.keys())


def _operation(one: Operation, *, is_open: bool) -> Json:
    answers = {one.status: one.answer} | one.other_answers
    responses: Json = {str(status): _answer(one, name) for status, name in answers.items()}
    for status in statuses_of(one, is_open=is_open):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    built: Json = {
        "operationId": one.name,
        "summary": one.about,
        "tags": [one.tag],
        "responses": responses,
    }
    names = re.findall(r"{(\w+)}", one.path)
    if names or one.parameters:
        built["parameters"] = [
            *({"name": name, "in": "path", "required": True, "schema": STRING} for name in names),
            *(_parameter(parameter) for parameter in one.parameters),
        ]
    if one.body is not None:
        content = {"application/json": {"schema": reference(one.body)}}
        built["requestBody"] = {"required": one.needs_body, "content": content}
    if is_open:
        built["security"] = []
    return built


def _parameter(one: Parameter) -> Json:
    return {"name": one.name, "in": one.place, "description": one.about, "schema": one.schema}


def _answer(one: Operation, name: str) -> Json:
    schemas = {
        "application/json": reference(name),
        "text/event-stream": reference("Event"),
        "text/plain": STRING,
        "text/html": STRING,
    }
    content = {media_type: {"schema": schemas[media_type]} for media_type in one.media_types}
    built: Json = {"description": name, "content": content}
    if one.headers:
        built["headers"] = _named_headers(one.headers)
    return built


def _refusal(status: int) -> Json:
    codes = [f"`{code}`" for code, one in STATUS.items() if one == status]
    content = {"application/json": {"schema": reference(_error_name(status))}}
    refusal: Json = {"description": ", ".join(codes), "content": content}
    if status == 401:
        refusal["headers"] = _named_headers(["WWW-Authenticate"])
    if status in {429, 500, 503}:
        refusal["headers"] = _named_headers(["Retry-After"])
    return refusal


def _error_name(status: int) -> str:
    return f"Error{status}"


def _key_scheme() -> Json:
    return {"type": "http", "scheme": "bearer", "bearerFormat": "sk-ID.SECRET"}


def _named_headers(names: Iterable[str]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _headers() -> Json:
    rates: Json = {name: {"schema": STRING} for name in RATE_HEADERS}
    return rates | {
        "WWW-Authenticate": {"schema": {"const": "Bearer"}, "required": True},
        "Retry-After": {
            "schema": integer(1, 86_400),
            "description": "Seconds after which to retry, if a retry can succeed.",
        },
        "X-Session-Id": {
            "schema": STRING,
            "description": "The session's id, or the client's name for it.",
        },
    }
