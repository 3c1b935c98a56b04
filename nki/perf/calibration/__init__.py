"""Public measurements, kernels like the measured ones, and the fit.

Run it as ``python -m nki.perf.calibration``.
"""
