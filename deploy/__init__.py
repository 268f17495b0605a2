"""Monitoring of a server: Prometheus rules and Grafana dashboard."""
