"""What differs between the releases of PyTorch that this project supports.

Everything else is written as if there were one release. A difference is one function here, which
says which releases have what; its C++ counterpart is `torch_neuronx/csrc/compat`.
"""
