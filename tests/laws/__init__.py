"""Laws that hold for every model runner."""
