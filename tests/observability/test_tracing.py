"""Spans of turns, as an exporter in memory gets them."""

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from typer.testing import CliRunner

from engine.errors import ConfigError
from sessiond.__main__ import build_cli
from sessiond.api.trace_parent import TraceParent
from sessiond.domain import (
    TurnAccepted,
    TurnError,
    TurnFinished,
    TurnReport,
    TurnRequest,
    TurnUsage,
)
from sessiond.observability.span_export import spans_to
from sessiond.observability.spans import TurnSpans
from tests.observability.scenario import say

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter):
    made = TurnSpans(SimpleSpanProcessor(exporter))
    yield made
    made.close()


def told(usage, **changes):
    accepted = TurnAccepted(
        response_id="resp_1",
        session_id="conv_1",
        message_id="msg_1",
        previous_response_id=None,
        model="fake",
        instructions="a secret",
        created_at=99.0,
        request=TurnRequest(temperature=0.5, max_output_tokens=9, seed=3),
    )
    finished = TurnFinished(**{"status": "completed", "text": "hush", "usage": usage, **changes})
    return TurnReport(accepted=accepted, finished=finished, received_at=98.0, ended_at=102.0)


USAGE = TurnUsage(
    reused_tokens=32,
    restored_tokens=16,
    restored_from="disk",
    new_tokens=4,
    output_tokens=8,
    kv_bytes=4096,
    queue_ms=500.0,
    ttft_ms=1000.0,
    total_ms=3000.0,
)


def seconds(span):
    return (span.start_time / 1e9, span.end_time / 1e9)


def test_a_turn_is_a_span_with_its_phases(spans, exporter):
    spans.turn_reported(told(USAGE))
    *phases, turn = exporter.get_finished_spans()
    assert (turn.name, turn.kind) == ("chat fake", SpanKind.SERVER)
    assert seconds(turn) == (98.0, 102.0)
    assert {span.name: seconds(span) for span in phases} == {
        "queue": (99.0, 99.5),
        "prefill": (99.5, 100.0),
        "decode": (100.0, 102.0),
    }
    assert {span.parent.span_id for span in phases} == {turn.context.span_id}
    (restore,) = turn.events
    assert (restore.name, restore.timestamp / 1e9) == ("restore", 99.5)
    assert dict(restore.attributes) == {
        "sessiond.restored_tokens": 16,
        "sessiond.restored_from": "disk",
    }


def test_attributes_are_those_of_the_conventions_and_none_has_a_text(spans, exporter):
    spans.turn_reported(told(USAGE))
    turn = exporter.get_finished_spans()[-1]
    found = dict(turn.attributes)
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sessiond",
        "gen_ai.request.model": "fake",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.response.id": "resp_1",
        "gen_ai.response.model": "fake",
        "gen_ai.response.finish_reasons": ("completed",),
        "gen_ai.conversation.id": "conv_1",
        "gen_ai.usage.input_tokens": 52,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.usage.cache_read.input_tokens": 48,
        "sessiond.recomputed_tokens": 0,
        "sessiond.kv_bytes": 4096,
        "sessiond.context": "full",
        "sessiond.fidelity": "exact",
    }
    assert turn.resource.attributes["service.name"] == "sessiond"
    assert not any(secret in turn.to_json() for secret in ("hush", "a secret"))


def test_a_turn_that_failed_in_the_queue_says_why(spans, exporter):
    error = TurnError(code="queue_timeout", message="no place came free")
    usage = TurnUsage(queue_ms=2000.0, total_ms=2000.0)
    spans.turn_reported(told(usage, status="failed", text="", error=error))
    *phases, turn = exporter.get_finished_spans()
    assert turn.status.status_code is StatusCode.ERROR
    assert turn.attributes["error.type"] == "queue_timeout"
    assert [span.name for span in phases] == ["queue", "prefill"]
    assert seconds(phases[1]) == (102.0, 102.0)


async def test_a_request_and_a_socket_bring_their_trace(stack, spans, exporter):
    async with stack(spans=spans) as running:
        async with httpx.AsyncClient(
            base_url=running.served.http_url, trust_env=False, timeout=60
        ) as http:
            body = {"input": "over HTTP", "max_output_tokens": 4}
            answer = await http.post("/v1/responses", json=body, headers=TRACEPARENT)
        async with running.served.connect(additional_headers=TRACEPARENT) as ws:
            event = await say(ws, "over a socket")
        async with running.served.connect() as ws:
            alone = await say(ws, "of no trace")
    turns = {
        span.attributes["gen_ai.response.id"]: span
        for span in exporter.get_finished_spans()
        if span.kind is SpanKind.SERVER
    }
    for response in (answer.json(), event["response"]):
        span = turns[response["id"]]
        assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
        assert span.attributes["gen_ai.conversation.id"] == response["conversation"]["id"]
        assert span.attributes["gen_ai.usage.input_tokens"] == response["usage"]["input_tokens"]
    assert turns[alone["response"]["id"]].parent is None
    assert len(turns) == 3


async def test_without_tracing_a_callers_trace_is_not_even_looked_for(stack):
    async with stack() as running:
        app = running.served.server.config.app
        assert not any(one.cls is TraceParent for one in app.user_middleware)


def test_the_server_needs_no_package_of_the_extra_unless_told_to_trace():
    code = "import sys, sessiond.assembly; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"otlp_traces_endpoint.*sessiond\[otel\]"):
        spans_to("http://127.0.0.1:4318/v1/traces")


def test_an_endpoint_that_is_none_is_refused():
    result = CliRunner().invoke(build_cli(), ["serve", "--otlp-traces-endpoint", "collector:4318"])
    assert result.exit_code == 2
    assert "--otlp-traces-endpoint must be a URL" in result.output


async def test_spans_reach_a_collector(stack):
    """OTLP over HTTP, as `--otlp-traces-endpoint` sends it."""
    got = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            got.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever).start()
        spans = spans_to(f"http://127.0.0.1:{collector.server_port}/v1/traces")
        async with stack(spans=spans) as running, running.served.connect() as ws:
            event = await say(ws, "hi")
        await asyncio.to_thread(spans.close)
        collector.shutdown()
    ((path, request),) = got
    names = [s.name for r in request.resource_spans for c in r.scope_spans for s in c.spans]
    assert path == "/v1/traces"
    assert sorted(names) == ["chat fake", "decode", "prefill", "queue"]
    assert event["response"]["id"] in str(request)
