"""Attention by Triton kernels: any page size, and blocks that are valid at any position."""
