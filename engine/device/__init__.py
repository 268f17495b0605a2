"""Interface to a computing device beside arithmetic: streams, events, copies, graphs, memory."""
