"""The documentation is true, or a test fails."""
