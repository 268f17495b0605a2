"""Builds the OpenAPI 3.1 document of the HTTP API. Values only, no endpoints."""
