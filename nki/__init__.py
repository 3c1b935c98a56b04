"""The Neuron Kernel Interface: kernels for NeuronCores, run and checked without the hardware."""
