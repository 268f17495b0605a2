"""The model: weights, layers, attention, sampling. The only place that imports torch."""
