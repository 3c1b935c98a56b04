"""As `torch_neuronx.integrations.lightning`, for who imports `pytorch_lightning`."""

from __future__ import annotations

import lightning_fabric as _fabric
import pytorch_lightning as _pytorch

from torch_neuronx.integrations._lightning.strategies import register

__all__ = ["fabric", "pytorch"]

fabric = register(_fabric)
pytorch = register(_pytorch)
