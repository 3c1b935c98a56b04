"""Run NEFF files from Python with NumPy's arrays: the documented `nrtpy`, on emulated NeuronCores.

    from nrtpy import NrtpyModel, NrtpyTensor

    model = NrtpyModel.load_from_neff("model.neff")
    x = NrtpyTensor.from_numpy(array, name="x")
    outputs = model(inputs={"x": x})
    print(outputs["output_0"].numpy())

Signatures and meanings are those of the public documents of SDK 2.32. docs/neff.md says where the
emulation differs.
"""

from nrtpy.errors import NrtError, NrtpyError
from nrtpy.model import BenchmarkResult, NrtpyModel, TensorMetadata
from nrtpy.runtime import configure, get_nrtpy_singleton, reset
from nrtpy.tensor import NrtpyTensor, NrtTensor

__version__ = "0.1.0"
__all__ = [
    "BenchmarkResult",
    "NrtError",
    "NrtTensor",
    "NrtpyError",
    "NrtpyModel",
    "NrtpyTensor",
    "TensorMetadata",
    "__version__",
    "configure",
    "get_nrtpy_singleton",
    "reset",
]
