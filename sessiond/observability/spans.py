"""One trace span per turn, made when the turn has ended."""

from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sessiond.domain import TurnReport, TurnUsage
from sessiond.observability.trace_parents import parent_headers
from sessiond.version import product_version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.util.types import AttributeValue

_NS = 1_000_000_000


class TurnSpans:
    """Owns the tracer provider. `processor` exports spans; by default in a batch thread."""

    def __init__(self, processor: "SpanProcessor") -> None:
        version = product_version()
        resource = Resource.create({"service.name": "sessiond", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("sessiond", version)
        self._w3c = TraceContextTextMapPropagator()

    def turn_reported(self, report: TurnReport) -> None:
        """Create the spans of a finished turn."""
        usage = report.finished.usage
        began_s = report.ended_at - usage.total_ms / 1000  # arrival at the engine
        span = self._tracer.start_span(
            f"chat {report.accepted.model}",
            context=self._w3c.extract(parent_headers.get() or {}),
            kind=SpanKind.SERVER,
            start_time=_ns(min(report.received_at, began_s)),
            attributes=_attributes(report),
        )
        if report.finished.error is not None:
            span.set_status(Status(StatusCode.ERROR, report.finished.error.code))
        self._add_phases(span, usage, began_s)
        span.end(_ns(report.ended_at))

    def close(self) -> None:
        """Flush pending spans, within a few seconds."""
        self._provider.shutdown()

    def _add_phases(self, span: Span, usage: TurnUsage, began_s: float) -> None:
        queued_s = usage.queue_ms / 1000
        first_s = usage.total_ms / 1000 if usage.ttft_ms is None else usage.ttft_ms / 1000
        if usage.restored_tokens:
            span.add_event(
                "restore",
                {
                    "sessiond.restored_tokens": usage.restored_tokens,
                    "sessiond.restored_from": usage.restored_from,
                },
                _ns(began_s + queued_s),
            )
        phases = [("queue", 0.0, queued_s), ("prefill", queued_s, first_s)]
        if usage.ttft_ms is not None:
            phases.append(("decode", first_s, usage.total_ms / 1000))
        within = set_span_in_context(span)
        for name, start_s, end_s in phases:
            start_ns, end_ns = _ns(began_s + start_s), _ns(began_s + max(start_s, end_s))
            self._tracer.start_span(name, context=within, start_time=start_ns).end(end_ns)


def _ns(seconds: float) -> int:
    return int(seconds * _NS)


def _attributes(report: TurnReport) -> "dict[str, AttributeValue]":
    accepted, finished = report.accepted, report.finished
    usage, request = finished.usage, accepted.request
    found: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sessiond",
        "gen_ai.request.model": request.model or accepted.model,
        "gen_ai.request.max_tokens": request.max_output_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.top_k": request.top_k or None,
        "gen_ai.request.seed": request.seed,
        "gen_ai.response.id": accepted.response_id,
        "gen_ai.response.model": accepted.model,
        "gen_ai.response.finish_reasons": [finished.reason or finished.status],
        "gen_ai.conversation.id": accepted.session_id,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "error.type": finished.error.code if finished.error else None,
        "sessiond.recomputed_tokens": usage.recomputed_tokens,
        "sessiond.kv_bytes": usage.kv_bytes,
        "sessiond.context": usage.context,
        "sessiond.fidelity": usage.fidelity,
    }
    return {name: value for name, value in found.items() if value is not None}
