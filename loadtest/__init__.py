"""Load tests of a running server: simulated users, scenarios and results."""
