"""The subcommands of sessiond."""
