"""nccom-test: how fast collectives are between the emulated cores, and whether they are right.

The command reads its words and prints; the ranks are processes of `torch_neuronx.tools.nccom`.
"""
