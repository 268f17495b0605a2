"""Model files: where they are, how they are fetched, what their headers say. No torch."""
