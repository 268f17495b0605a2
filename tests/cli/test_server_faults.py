"""The published scenarios of the Responses WebSocket, played to each of our own clients."""

import json
from pathlib import Path

import pytest

from benchmarks.load_client import LoadClient
from sessiond.cli.chat_client import ChatClient, TurnOptions
from sessiond.cli.server_api import ServerAddress
from tests.cli.scripted_server import Play, ScriptedServer

FILE = Path(__file__).parents[1] / "data" / "openai_ws_scenarios.json"
SCENARIOS = {one["id"]: one for one in json.loads(FILE.read_text())["scenarios"]}
FINE = Play(frames=[{"type": "response.completed", "response": {"id": "resp_after", "output": []}}])
OUTCOMES = {
    "completed_then_completed": ["completed", "completed"],
    "failed_then_completed": ["failed", "completed"],
    "incomplete_then_completed": ["incomplete", "completed"],
    "nested_error_then_completed": ["refused", "completed"],
    "unknown_event_and_fields": ["completed"],
    "premature_close_1000": ["cut"],
    "premature_close_1011": ["cut"],
    "malformed_json": ["cut"],
}
FAULTS = [name for name, outcomes in OUTCOMES.items() if len(outcomes) == 1]


def plays_of(scenario):
    turns = [Play(frames=turn["frames"]) for turn in scenario["turns"]]
    if (code := scenario.get("close_code")) is not None:
        turns[-1] = Play(frames=scenario["turns"][-1]["frames"], close_code=code)
    return turns


def test_every_scenario_is_played():
    assert set(SCENARIOS) == set(OUTCOMES)
    assert len(FAULTS) == 4


@pytest.mark.parametrize("name", OUTCOMES)
def test_chat_client_ends_every_turn_once_and_goes_on(name):
    with ScriptedServer([*plays_of(SCENARIOS[name]), FINE]).running() as server:
        client = ChatClient(ServerAddress.parse(server.url), TurnOptions(), sleep=lambda s: None)
        client.connect()
        turns = [list(client.ask("hi", cancel_wanted=lambda: False)) for _ in OUTCOMES[name]]
        after = list(client.ask("hi", cancel_wanted=lambda: False))[-1]
        client.close()
    assert [parts[-1].outcome for parts in turns] == OUTCOMES[name]
    assert (after.outcome, after.tip) == ("completed", "resp_after")


def test_chat_client_shows_the_text_of_a_scenario():
    with ScriptedServer(plays_of(SCENARIOS["completed_then_completed"])).running() as server:
        client = ChatClient(ServerAddress.parse(server.url), TurnOptions())
        parts = list(client.ask("hi", cancel_wanted=lambda: False))
        client.close()
    assert "".join(part.text for part in parts[:-1]) == "Synthetic text"


@pytest.mark.parametrize("name", OUTCOMES)
async def test_load_client_ends_every_turn_once(name):
    with ScriptedServer(plays_of(SCENARIOS[name])).running() as server:
        async with LoadClient(server.url) as client:
            turns = [await client.ask("hi") for _ in OUTCOMES[name]]
    assert [turn.end.outcome for turn in turns] == OUTCOMES[name]
