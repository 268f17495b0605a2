"""The Grafana dashboard, as code and as generated JSON."""
