"""Exports spans to a collector by OTLP over HTTP."""

from typing import TYPE_CHECKING

from engine.errors import ConfigError

if TYPE_CHECKING:
    from sessiond.observability.spans import TurnSpans


def spans_to(endpoint: str) -> "TurnSpans":
    """Return spans exported to an endpoint such as http://127.0.0.1:4318/v1/traces.

    Raises:
        ConfigError: the packages of the extra are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from sessiond.observability.spans import TurnSpans
    except ImportError as error:
        needed = "empty, unless the extra is installed: pip install 'sessiond[otel]'"
        raise ConfigError("otlp_traces_endpoint", endpoint, needed) from error
    return TurnSpans(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
