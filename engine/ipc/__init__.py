"""How a gateway talks to an engine: messages, queries, framing, clients."""
