"""The dashboard of Grafana, as code and as the file that Grafana reads."""
