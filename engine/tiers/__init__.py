"""Where KV goes when it leaves the device: host memory, then disk. Blocks by their chain keys."""
