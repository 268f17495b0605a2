"""Native kernels against float references, bit for bit against themselves, and sanitised."""
