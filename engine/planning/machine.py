"""Free memory of this machine, the default of a plan."""

from engine.free_memory import free_host_bytes


def free_bytes() -> int:
    """Main memory available now, within the limits of this process's control groups."""
    return free_host_bytes()
