"""Trace context of a request from its W3C headers, inherited by the request's tasks."""

from collections.abc import Mapping
from contextvars import ContextVar

TRACE_HEADERS = ("traceparent", "tracestate")
parent_headers: ContextVar[Mapping[str, str] | None] = ContextVar("parent_headers", default=None)
"""Set by the gateway; tasks inherit it. None: the request is part of no trace."""
