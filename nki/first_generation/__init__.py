"""Kernels of the first generation, which import this by the name `neuronxcc.nki`.

A layer over `nki`: tiles as results, index expressions and masks become today's instructions.
"""
