"""neuron-top: what neuron-monitor says, full screen in a terminal."""
