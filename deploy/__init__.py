"""What runs around a server: Prometheus' rules, Grafana's dashboard."""
