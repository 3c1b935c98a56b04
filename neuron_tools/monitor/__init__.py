"""neuron-monitor: what the emulated machine and its users do, as a JSON document per period."""
