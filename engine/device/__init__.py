"""What a computing device offers beside arithmetic: streams, events, copies, graphs, memory."""
