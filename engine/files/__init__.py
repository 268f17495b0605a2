"""Model files: locations, downloads and headers. No torch."""
