"""Native CPU kernels: a small C library, its build, and how Python reaches it. No torch."""
