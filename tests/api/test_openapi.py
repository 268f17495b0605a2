"""`/openapi.json`: it is valid, and has every route and no other."""

import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.routing import Route

from sessiond.api.access import OPEN_PATHS
from sessiond.api.openapi.bodies import decided, neutral_schema
from sessiond.api.openapi.document import KEY, openapi_document
from sessiond.api.openapi.words import STRING, digits_up_to
from sessiond.api.protocol.fields import Neutral, only_neutral
from sessiond.app import build_app
from sessiond.errors import RequestError


def described(document):
    return {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }


def served(app):
    """What the routes take; converters of their parameters are not part of a path's name.

    HEAD and OPTIONS of probed paths answer as GET does.
    """
    return {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods - {"HEAD", "OPTIONS"}
    }


def document(**changes):
    options = {"context_policies": {"none": {}}, "open_paths": OPEN_PATHS, "asks_for_keys": True}
    return openapi_document("1", **{**options, **changes})


async def test_the_document_is_valid_and_has_exactly_the_routes(stack):
    async with (
        stack(keys=True) as running,
        httpx.AsyncClient(base_url=running.served.http_url, trust_env=False, timeout=60) as http,
    ):
        answer = await http.get("/openapi.json")  # without a key
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        found = answer.json()
        routes = served(build_app(running.served.gateway))
    validate(found)
    assert found["openapi"].startswith("3.1.")
    assert routes - described(found) == set(), "routes without a row in sessiond/api/openapi"
    assert described(found) - routes == set(), "rows in sessiond/api/openapi without a route"


def test_open_paths_are_those_that_need_no_key():
    paths = document()["paths"]
    for path, operations in paths.items():
        for operation in operations.values():
            assert (operation.get("security") == []) == (path in OPEN_PATHS)
            assert ("401" in operation["responses"]) == (path not in OPEN_PATHS)
    assert paths.keys() >= OPEN_PATHS


def test_a_server_that_asks_nobody_says_that_keys_are_optional():
    assert document()["security"] == [{KEY: []}]
    assert document(asks_for_keys=False)["security"] == [{}, {KEY: []}]


def test_names_of_operations_are_different():
    names = [
        operation["operationId"]
        for operations in document()["paths"].values()
        for operation in operations.values()
    ]
    assert len(names) == len(set(names))


def test_every_schema_is_used():
    found = document()
    used = set(re.findall(r"#/components/\w+/([\w-]+)", str(found)))
    components = found["components"]
    assert used == {
        name for kind in ("schemas", "headers", "responses") for name in components[kind]
    }


def test_a_field_that_is_checked_and_not_described_is_refused():
    neutral = {"tools": Neutral(values=([],), allowed="an empty array")}
    assert decided({"model", "tools"}, {"model": STRING}, neutral).keys() == {"model", "tools"}
    with pytest.raises(ValueError, match="top_k"):
        decided({"model", "tools", "top_k"}, {"model": STRING}, neutral)
    with pytest.raises(ValueError, match="model"):
        decided({"tools"}, {"model": STRING}, neutral)


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 3))
def test_digits_up_to_a_number_say_numbers_up_to_it(highest, number, zeros):
    schema = digits_up_to(highest)
    written = "0" * zeros + str(number)
    is_taken = bool(re.search(schema["pattern"], written)) and len(written) <= schema["maxLength"]
    assert is_taken == (1 <= number <= highest and len(written) <= len(str(highest)))


def test_policies_are_described_with_their_parameters():
    policies = {"last_turns": {"turns": int | None, "extra": Any}}
    schema = document(context_policies=policies)["components"]["schemas"]["Policy"]
    check = Draft202012Validator(schema).is_valid
    assert check({"type": "last_turns", "turns": 3, "extra": "x", "fidelity": None})
    assert not check({"type": "last_turns", "turns": "3"})
    assert not check({"type": "last_turns", "tokens": 3})
    assert not check({"type": "other"})


@pytest.mark.parametrize(
    ("values", "taken", "refused"),
    [
        ((False,), [False, None], [True, {}]),
        (({}, {"mode": "implicit"}), [None, {}, {"mode": None}, {"mode": "implicit"}], ["x"]),
        (({"type": "text"},), [None, {"type": "text"}], [{}, {"type": None}, {"type": "json"}]),
        (([],), [[], None], [[1], {}]),
        ((), [None], [False, {}]),
    ],
)
def test_what_asks_for_nothing_is_described_as_it_is_checked(values, taken, refused):
    neutral = Neutral(values=values, allowed="that")
    check = Draft202012Validator(neutral_schema(neutral)).is_valid
    for value in taken:
        only_neutral({"field": value}, {"field": neutral})
        assert check(value)
    for value in refused:
        with pytest.raises(RequestError):
            only_neutral({"field": value}, {"field": neutral})
        assert not check(value)
