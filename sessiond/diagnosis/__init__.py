"""Why memory rises, in words: what was found, what it means, what to do."""
