"""Models compiled ahead of time: `torch_neuronx.trace` and what goes with it (docs/inference.md).

capture.py    a function or module to a graph of tensor IR, its weights and states
signature.py  what goes in and comes out, as TorchScript source
trace.py      `trace`: from there to a `torch.jit.ScriptModule` around a `neuron::Model`
manifest.py   what a saved model says about itself, read with every check
loading.py    called by `neuron::Model` (csrc/inference): from the saved form to loaded programs
placement.py  which cores, when: `set_neuron_cores`, contexts, lazy and asynchronous loading
batching.py   `dynamic_batch`; parallel.py: `DataParallel`
"""
