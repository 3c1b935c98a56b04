"""Stage 2: nodes become units (loop kernels, matrix products, calls) over storages."""
