"""Public measurements, kernels like the measured ones, and the fit: `python -m nki.perf.calibration`."""
