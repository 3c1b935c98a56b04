"""Command-line tools of the Neuron SDK."""
