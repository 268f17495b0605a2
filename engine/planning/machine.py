"""What this machine has left, for a plan that names no other."""

from engine.free_memory import free_host_bytes


def free_bytes() -> int:
    """Main memory that can be had now, within the limits of this process's control groups."""
    return free_host_bytes()
