"""What is told to Prometheus, Grafana and OpenTelemetry, as these see it."""
