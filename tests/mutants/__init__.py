"""Small faults in ten modules, one at a time: the tests that reach a module must find them."""
