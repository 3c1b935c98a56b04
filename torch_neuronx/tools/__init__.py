"""Looking inside compiled programs: `torch_neuronx.explain` and `torch_neuronx.compare`."""
