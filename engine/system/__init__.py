"""The process and the machine: memory, processors, C compiler, byte sizes, histograms."""
