"""What the HTTP API is, in the words of OpenAPI 3.1. Values only: it serves nothing."""
