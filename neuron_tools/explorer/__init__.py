"""`neuron-explorer`: profiles of programs on the device, captured, kept in files, and shown."""
