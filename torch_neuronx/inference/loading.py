"""From the saved form of a model to programs on cores; `neuron::Model` calls this.

All that comes from a file is checked here: the NEFF by `read_neff`, the operators that it names by
`Executable`, the manifest against the program, and the tensors against the manifest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from neuronxcc.neff import NeffError, read_neff, rules
from torch_neuronx._config import machine
from torch_neuronx.inference.errors import ModelFormatError
from torch_neuronx.inference.manifest import (
    TensorFacts,
    check_against,
    read_manifest,
    refusal_of,
)
from torch_neuronx.inference.placement import next_cores
from torch_neuronx.program.executable import Executable
from torch_neuronx.program.model_time import count_kept

# Operators besides the harmless ones that NEFFs made in this process may use, by hash of the NEFF.
_KNOWN: dict[bytes, frozenset[str]] = {}


def trust(neff: bytes, operators: frozenset[str]) -> None:
    """Let a NEFF that was compiled here use operators that its model calls."""
    if operators:
        _KNOWN[hashlib.sha256(neff).digest()] = operators


def load(
    text: str,
    neff: torch.Tensor,
    weights: Sequence[torch.Tensor],
    states: Sequence[torch.Tensor],
    cores: Sequence[int],
    dynamic: bool,
) -> dict[str, Any]:
    """Load a model.

    Args:
        text: The manifest.
        neff: Bytes of the NEFF, uint8[n].
        weights: Those in the model.
        states: First values of the states.
        cores: Where to put a replica; empty: on the next core in turn.
        dynamic: It says that it takes any batch.

    Returns:
        What `Model::load_locked` (csrc/inference/model.cpp) reads.

    Raises:
        ModelFormatError: The manifest is damaged or belongs to something else.
        NeffError: The NEFF is.
    """
    manifest = read_manifest(text)
    if neff.dtype != torch.uint8 or neff.dim() != 1 or not _has_its_memory(neff):
        raise ModelFormatError("NRT_INVALID (status 2): the saved model has no NEFF")
    content = memoryview(np.ascontiguousarray(neff.cpu().numpy()))  # type: ignore[arg-type]
    found = read_neff(content)
    check_against(manifest, found.program)
    refusal = refusal_of(manifest, found.program) if dynamic else ""
    if refusal:
        raise ModelFormatError(
            f"NRT_INVALID (status 2): the saved model has a dynamic batch, but {refusal}"
        )
    check_target(found.info.target)
    held = () if manifest.separate_weights else manifest.weights
    _check_tensors("weight", held, weights)
    _check_tensors("state", manifest.states, states)
    known = frozenset[str]()
    if _KNOWN:
        known = _KNOWN.get(hashlib.sha256(content).digest(), known)
    programs, first = [], None
    for core in cores or next_cores():
        made = Executable(found.program, torch.device("neuron", core), known, like=first)
        count_kept(made)
        programs.append(made.run)
        first = first or made
    return {
        "names": [facts.name for facts in manifest.inputs],
        "sizes": [list(facts.shape) for facts in manifest.inputs],
        "dtypes": [facts.torch_dtype for facts in manifest.inputs],
        "sources": manifest.sources,
        "outputs": manifest.outputs,
        "separate_weights": len(manifest.weights) if manifest.separate_weights else 0,
        "programs": programs,
    }


def check_target(target: str) -> None:
    """Refuse a NEFF for other chips than the machine's.

    Raises:
        ModelFormatError: It is for another generation of NeuronCores.
    """
    here = machine().target.name
    remedy = f"trace it again with compiler_args='--target {here}'"
    try:
        rules.check_target(target, here, remedy)
    except NeffError as error:
        raise ModelFormatError(str(error)) from None


def _check_tensors(kind: str, wanted: Sequence[TensorFacts], given: Sequence[torch.Tensor]) -> None:
    if len(wanted) != len(given):
        raise ModelFormatError(
            f"NRT_INVALID (status 2): the saved model has {len(given)} {kind}s, not {len(wanted)}"
        )
    for facts, tensor in zip(wanted, given, strict=True):
        if TensorFacts.of(facts.name, tensor) != facts:
            raise ModelFormatError(
                f"NRT_INVALID (status 2): {kind} {facts.name!r} of the saved model is "
                f"{tensor.dtype}{list(tensor.shape)}, not {facts}"
            )
        if not _has_its_memory(tensor):
            raise ModelFormatError(
                f"NRT_INVALID (status 2): {kind} {facts.name!r} of the saved model, {facts}, "
                "is not dense or reaches beyond its memory"
            )


def _has_its_memory(tensor: torch.Tensor) -> bool:
    """Return whether all elements of a tensor lie in a row, on the host or a core.

    PyTorch reads sizes and the offset of a saved tensor without looking how large its storage is.
    """
    if tensor.layout != torch.strided or tensor.device.type not in {"cpu", "neuron"}:
        return False
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        return False
    end = tensor.storage_offset() + math.prod(tensor.shape)
    return end * tensor.element_size() <= tensor.untyped_storage().nbytes()
