"""Interface to a computing device, without arithmetic: streams, events, copies, graphs, memory."""
