"""The trace that a request is part of, for the tasks that the request starts.

Apart from the spans, which need the extra `otel`.
"""

from collections.abc import Mapping
from contextvars import ContextVar

TRACE_HEADERS = ("traceparent", "tracestate")
parent_headers: ContextVar[Mapping[str, str] | None] = ContextVar("parent_headers", default=None)
"""The request's W3C headers, set by the gateway; tasks inherit it. None: part of no trace."""
