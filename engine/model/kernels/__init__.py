"""Native CPU kernels: a small C library, its build, and its Python bindings. No torch."""
