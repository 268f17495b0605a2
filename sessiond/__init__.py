"""The gateway: sockets, HTTP, sessions, SQL. Never imports torch."""
