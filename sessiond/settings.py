"""Settings: flags over environment over sessiond.toml over defaults."""
