"""Attention by our own Triton kernels: any page size, blocks that may stand at any position."""
