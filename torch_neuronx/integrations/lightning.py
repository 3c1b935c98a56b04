"""Lightning's Trainer and Fabric on the device.

    import torch_neuronx.integrations.lightning
    from lightning.pytorch import Trainer

    Trainer(accelerator="neuron", devices=2)  # DDP
    Trainer(accelerator="neuron", devices=1, strategy="neuron")
    Trainer(accelerator="neuron", devices=2, strategy="neuron_fsdp")

This import is needed because Lightning 2.6 has no entry point for accelerators or strategies: those
that it has (`lightning.pytorch.callbacks_factory`) are read after a Trainer has chosen its device.
It registers what `_lightning/strategies.py` makes with both of Lightning's registries, of
`lightning.pytorch` and `lightning.fabric`, and changes nothing else of Lightning. Who imports
`pytorch_lightning`, the same code under another name, imports
`torch_neuronx.integrations.pytorch_lightning` instead.

`pytorch` and `fabric` have the classes, for arguments that names don't take, as in
`Trainer(accelerator="neuron", strategy=pytorch.FSDPStrategy(state_dict_type="sharded"))`.
"""

from __future__ import annotations

from lightning import fabric as _fabric
from lightning import pytorch as _pytorch

from torch_neuronx.integrations._lightning.strategies import register

__all__ = ["fabric", "pytorch"]

fabric = register(_fabric)
pytorch = register(_pytorch)
