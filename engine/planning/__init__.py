"""Plans a server's memory before it is started, from a model's header or config file alone."""
