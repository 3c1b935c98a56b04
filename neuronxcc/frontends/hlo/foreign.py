"""What bytes that are no model are instead: the files that are given to the compiler by mistake."""

from __future__ import annotations

import io
import zipfile
from typing import Final

from neuronxcc.neff.container import parse_header
from neuronxcc.program.errors import NeffError

REMEDY: Final = (
    "give a serialised HloModuleProto (lowered.compiler_ir('hlo')"
    ".as_serialized_hlo_module_proto() in JAX), or StableHLO"
)
_TEXT: Final = (
    "it is HLO as text, which is for reading only: dump the module with "
    "--xla_dump_hlo_as_proto, or as StableHLO (lowered.as_text() in JAX)"
)
_NEFF: Final = "it is a NEFF, which is compiled already: nrtpy runs it"
_EXPORTED: Final = (
    "it is an exported program of PyTorch: load it with torch.export.load, and compile its module "
    "with torch_neuronx.trace, or torch.compile(backend='neuron')"
)
_SCRIPT: Final = (
    "it is a module of TorchScript, whose operators the compiler doesn't know: give the model and "
    "an example input to torch_neuronx.trace"
)
_WEIGHTS: Final = (
    "it is what torch.save writes, weights without a program: load them into the model, and "
    "compile that with torch_neuronx.trace, or torch.compile(backend='neuron')"
)


def remedy(content: bytes) -> str:
    """What to do with bytes that hold no module: by what they are, if that is known."""
    if content.lstrip().startswith(b"HloModule "):
        return _TEXT
    if _is_neff(content):
        return _NEFF
    if zipfile.is_zipfile(io.BytesIO(content)):
        return _of_archive(content)
    return REMEDY


def _is_neff(content: bytes) -> bool:
    try:
        parse_header(content)
    except NeffError:
        return False
    return True


def _of_archive(content: bytes) -> str:
    """What to do with a zip file, which is how PyTorch keeps everything."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError):
        return REMEDY  # bytes from anywhere: the end of an archive without the rest of it
    if any(name.startswith("models/") for name in names):
        return _EXPORTED
    if "constants.pkl" in names:
        return _SCRIPT
    return _WEIGHTS if "data.pkl" in names else REMEDY
