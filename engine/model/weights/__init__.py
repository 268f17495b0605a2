"""Readers of weights: GGUF files and safetensors folders."""
