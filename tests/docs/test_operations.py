"""docs/operations.md names every event, error, close code and metric, and no other."""

import json
import re
from pathlib import Path
from typing import get_args

from msgspec import structs

from engine.ipc.messages import EngineInfo
from engine.ipc.queries import EngineStats, ReclaimCause, TierInfo, TierStats
from engine.system.histogram import MOVE_SECONDS, Buckets, empty
from sessiond.domain import IncompleteReason
from sessiond.errors import STATUS
from sessiond.observability.metrics import Metrics, Poll
from tests.docs.blocks import ROOT, table_column, table_rows

PAGE = "docs/operations.md"
MOVES = empty(MOVE_SECONDS)
GATEWAY = ROOT / "sessiond" / "api"


def source_of(folder):
    return "\n".join(path.read_text() for path in folder.rglob("*.py"))


def test_every_event_is_listed():
    code = source_of(GATEWAY)
    sent = set(re.findall(r'"((?:response|session)\.[a-z_.]+)"', code))
    received = {
        "response.create",
        "response.resume",
        "response.cancel",
        "session.update",
        "session.close",
    }
    objects = {"session.deleted"}  # of an HTTP answer
    statuses = {"response.completed", "response.incomplete", "response.failed"}
    events = (sent | statuses | {"error"}) - received - objects
    assert set(table_column(PAGE, "### Events of the server")) == events
    assert set(table_column(PAGE, "### Events of the client")) == received


def test_every_extension_event_is_listed():
    extensions = json.loads(
        (GATEWAY / "protocol" / "schema_extensions.json").read_text(encoding="utf-8")
    )
    listed = set(table_column(PAGE, "### Events of the server"))
    assert set(extensions["events"]) <= listed
    assert set(extensions["request_events"]) <= set(table_column(PAGE, "### Events of the client"))


def test_every_error_code_is_listed_with_its_status():
    rows = table_rows(PAGE, "### Errors")
    assert {(row[0], row[1]) for row in rows} == {(c, str(s)) for c, s in STATUS.items()}


def test_every_incomplete_reason_is_listed():
    assert set(table_column(PAGE, "### Why a reply is incomplete")) == set(
        get_args(IncompleteReason)
    )


def test_every_close_code_is_listed():
    used = set(re.findall(r"\b(10(?:0[0-9]|1[0-5]))\b", source_of(GATEWAY)))
    listed = set(table_column(PAGE, "### Close codes"))
    assert used <= listed
    assert listed <= {"1000", "1002", "1007", "1008", "1009", "1011", "1012", "1013"}


def test_every_metric_is_listed():
    assert set(table_column(PAGE, "## Metrics")) == metric_names()


def metric_names():
    """Names as a scrape shows them, with their labels."""
    poll = Poll(info=dummy(EngineInfo), stats=dummy(EngineStats), restarts=0, hangs=0, sockets=0,
                has_database=True, started_at=0.0,
                leaked_blocks=0)  # fmt: skip
    text = Metrics().render(poll).decode()
    names = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split()
            if not name.endswith("_created"):
                names.add(name)
            assert kind in ("counter", "gauge", "histogram", "summary")
    return names


def dummy(message):
    """A message with a value of the right type in every field."""
    values = {bool: True, int: 1, float: 1.0, str: "x", dict[str, int]: {"finish": 1},
              tuple[TierInfo, ...]: (), Buckets: Buckets()}  # fmt: skip
    if message is EngineStats:
        tier = structs.replace(dummy(TierStats), store_times=MOVES, fetch_times=MOVES)
        values |= {dict[str, TierStats]: {"disk": tier}, dict[ReclaimCause, Buckets]: {}}
    return message(**{name: values[kind] for name, kind in message.__annotations__.items()})


def test_page_shows_no_path_of_a_machine():
    assert not re.search(r"/(?:root|home|tmp)/", Path(ROOT / PAGE).read_text(encoding="utf-8"))
