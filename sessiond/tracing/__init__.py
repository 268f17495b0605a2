"""Traces of turns for OpenTelemetry, where the server is told to send some: extra `[otel]`."""
