"""The model: weights, layers, attention, sampling."""
