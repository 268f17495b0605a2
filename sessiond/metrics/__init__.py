"""Prometheus metrics of the server: what ended is counted, what is now is asked for by a scrape."""
