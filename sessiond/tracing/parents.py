"""Whose trace a request is part of: its W3C headers, for all that the request's tasks begin."""

from collections.abc import Mapping
from contextvars import ContextVar

TRACE_HEADERS = ("traceparent", "tracestate")
parent_headers: ContextVar[Mapping[str, str] | None] = ContextVar("parent_headers", default=None)
"""Set by the gateway; tasks inherit it. None: the request is part of no trace."""
