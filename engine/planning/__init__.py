"""Plans a server's memory before it starts, from a model's header or config file alone."""
