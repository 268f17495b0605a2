"""The client-facing layer: protocol (no I/O), WebSocket and HTTP endpoints."""
