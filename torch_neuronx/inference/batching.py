"""`dynamic_batch`: one traced shape for batches of any size."""

from __future__ import annotations

from typing import Any

import torch

from neuronxcc.neff import read_neff
from torch_neuronx.inference.manifest import check_against, read_manifest, refusal_of
from torch_neuronx.inference.placement import DYNAMIC_BATCH, models


def dynamic_batch(neuron_script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Let a traced module take any batch: any first size that all its inputs have.

    The batch is run in chunks of the traced size, the last one padded with zeros; on several cores
    (`set_neuron_cores`) so many chunks run at the same time.

    Args:
        neuron_script: What `trace` returned; it is changed in place.

    Returns:
        The same module.

    Raises:
        ValueError: Inputs or outputs do not all have one first dimension of the same size, or the
            model updates states or its inputs.
    """
    found = models(neuron_script)
    for model in found:
        refusal = why_not(model)
        if refusal:
            raise ValueError(f"dynamic_batch is not possible: {refusal}")
    value = True
    for model in found:
        model.set_option(DYNAMIC_BATCH, value)
    return neuron_script


def why_not(model: Any) -> str:
    """Why a `neuron::Model` cannot have a dynamic batch; "" if it can."""
    manifest = read_manifest(model.manifest())
    program = read_neff(memoryview(model.neff().numpy())).program
    check_against(manifest, program)  # of a model that is loaded later, nobody has yet
    return refusal_of(manifest, program)
