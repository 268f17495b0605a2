"""OpenTelemetry traces of turns, when an endpoint is configured (extra `[otel]`)."""
