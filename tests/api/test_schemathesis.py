"""Schemathesis plays against `/openapi.json` and finds nothing.

It runs as the command that anybody would run, against the whole stack with a fake model.
`make soak` plays more.
"""

import asyncio
import copy
import json
import os
import re
import sys
from pathlib import Path

import httpx
import pytest

from tests.api.tenants import Person
from tests.harness.stack import MODEL
from tests.soak import SOAK

pytestmark = pytest.mark.second

CONFIG = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = 200 if SOAK else 3
SEED = 20260701
DRAIN = "/admin/drain"  # ends what the others need, so it is played last
MOST_TOKENS = 512  # that fit the pool beside a prompt
MOST_MESSAGES = 20  # that fit its context
LEAST_PARAMETER = 48  # what every policy takes of each of its whole numbers


async def play(folder, location, *options, key=None):
    """Run schemathesis to its end; its report where it found something."""
    command = ["-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", location]
    fixed = ["--seed", str(SEED), "--generation-deterministic"]
    fixed += ["--no-color", "--suppress-health-check", "all", "--max-examples", str(EXAMPLES)]
    fixed += ["--warnings", "off"]
    header = [] if key is None else ["--header", f"Authorization: Bearer {key}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        *fixed,
        *header,
        *options,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "PYTHONWARNINGS": "default"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        process.kill()
        raise
    report = output.decode()
    assert process.returncode == 0, report
    return report


def played(report):
    """How many operations were really played."""
    return int(re.search(r"Tested: (\d+)", report)[1])


async def document_of(running):
    async with httpx.AsyncClient(
        base_url=running.served.http_url, trust_env=False, timeout=60
    ) as http:
        return (await http.get("/openapi.json")).json()


def rows(document):
    return sum(len(operations) for operations in document["paths"].values())


def closed(schema):
    """The same schema of what is answered, but nothing beside what it names may be there."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: one if name == "not" else closed(one) for name, one in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


def narrowed(schema):
    """The same schema of a policy's parameter, within the bounds that policies have."""
    bounds = {
        "integer": {"minimum": LEAST_PARAMETER},
        "number": {"exclusiveMinimum": 0, "maximum": 1},
    }
    return {"anyOf": [one | bounds.get(one.get("type"), {}) for one in flat(schema) if one]}


def flat(schema):
    for one in schema.get("anyOf", [schema]):
        yield from flat(one) if "anyOf" in one else [one]


def of_this_server(document):
    """The document with what a client of just this server would know; answers tell no more."""
    document = copy.deepcopy(document)
    schemas = closed(document["components"]["schemas"])
    request = schemas["CreateResponse"]["properties"]
    for pairs in (request, schemas["CreateChatCompletion"]["properties"]):
        pairs["model"] = {"enum": [MODEL, None]}
        names = pairs["logit_bias"]["anyOf"][0]["propertyNames"]
        names["pattern"] = "^(0|[1-9][0-9]?)$"  # ids that its vocabulary has
        for name in pairs.keys() & {"max_output_tokens", "max_tokens", "max_completion_tokens"}:
            pairs[name]["anyOf"][0]["maximum"] = MOST_TOKENS
    schemas["CreateChatCompletion"]["properties"]["messages"]["maxItems"] = MOST_MESSAGES
    request["input"] = {"type": "string", "minLength": 1}  # else there must be an open question
    schemas["CreateResponse"]["required"] = ["input"]
    request["conversation"] = request["previous_response_id"] = {"type": "null"}
    item = schemas["InputItem"]["properties"]
    part = schemas["TextPart"]["properties"]
    for pairs in (item, part):  # what nobody looks at may be anything, but for numbers too long
        pairs |= {name: {"type": ["string", "null"]} for name, one in pairs.items() if not one}
    for policy in schemas["Policy"]["anyOf"]:
        words = {"type", "fidelity", "oversize", "under_pressure"}
        for name in policy["properties"].keys() - words:
            policy["properties"][name] = narrowed(policy["properties"][name])
    document["components"]["schemas"] = schemas
    return document


async def test_what_the_document_allows_is_taken_and_answers_are_as_it_says(stack, tmp_path):
    async with stack() as running:
        document = of_this_server(await document_of(running))
        path = tmp_path / "openapi.json"
        path.write_text(json.dumps(document))
        options = ("--url", running.served.http_url, "--mode", "positive", "--exclude-path", DRAIN)
        report = await play(tmp_path, str(path), *options)
        assert played(report) == rows(document) - 2
        report = await play(tmp_path, str(path), *options[:-2], "--include-path", DRAIN)
        assert played(report) == 2
        await running.idle()


async def test_what_the_document_forbids_is_refused(stack, tmp_path):
    async with stack() as running:
        location = f"{running.served.http_url}/openapi.json"
        report = await play(
            tmp_path,
            location,
            *("--mode", "negative", "--exclude-path", DRAIN, "--phases", "coverage,fuzzing"),
        )
        assert played(report) > 25  # the others take nothing that could be wrong
        await running.idle()


async def test_nobody_is_let_in_without_a_key(stack, tmp_path):
    async with stack(keys=True) as running:
        document = await document_of(running)
        person = await Person.join(running, "ada")
        report = await play(
            tmp_path,
            f"{running.served.http_url}/openapi.json",
            *("--phases", "coverage,fuzzing", "--exclude-checks", "positive_data_acceptance"),
            key=person.key,
        )
        assert played(report) == rows(document) - 1  # what it read is the document itself
        await running.idle()
