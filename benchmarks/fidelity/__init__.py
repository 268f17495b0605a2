"""What `shifted` KV costs in quality against `exact`, on long conversations."""
