"""Published times of whole models, models of the same shapes, and the fit.

Run it as ``python -m torch_neuronx.estimation.calibration``.
"""
