"""Communication between gateway and engine: messages, queries, framing, clients."""
