"""What the process and the machine give: memory, processors, sizes in bytes, histograms."""
