"""What `benchmarks.gpu` is made of: a model without a file, checks, ceilings, measures."""
