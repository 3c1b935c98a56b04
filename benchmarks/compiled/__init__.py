"""torch.compile(backend="neuron") against Inductor and XLA on the same machine."""
