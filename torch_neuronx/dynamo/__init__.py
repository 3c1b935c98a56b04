"""`torch.compile(backend="neuron")`: from PyTorch's graphs to the compiler's tensor IR.

backend.py          what the entry points of the group `torch_dynamo_backends` name
decompositions.py   which operators AOTAutograd takes apart before we see them
importer.py         an FX graph of ATen operators -> a graph of tensor IR
lowerings/          one table: ATen operator -> function that emits IR
reference.py        runs a graph by the IR's NumPy meaning, for tests
"""
