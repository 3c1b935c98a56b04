"""Strategies on NeuronCores, made from Lightning's own.

Lightning has its Trainer's classes and Fabric's, and the whole of them once more in the package
`pytorch_lightning`. They differ in names, so what is here is made for each of these libraries.

| Class | Name | Differs from Lightning's in |
|---|---|---|
| SingleDeviceStrategy | "neuron" | the device is the one that `devices=` named |
| DDPStrategy | "ddp" and its variants | modules are wrapped without CUDA's streams |
| FSDPStrategy | "neuron_fsdp" | meshes and autocast are of this device |
| ModelParallelStrategy | none, has arguments | |

All of them take the precision that Lightning has chosen and have it on this device: Lightning's
connectors make every plugin for mixed precision for "cuda" or "cpu".

"ddp" is entered again under its own name, by the registry's argument `override`, since it is what
Lightning chooses for several devices. On other devices than this one it is Lightning's strategy.
"fsdp" is refused by Lightning, by name, for other accelerators than CUDA's.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from torch_neuronx.integrations._lightning.accelerator import NAME, accelerator

FSDP = "neuron_fsdp"


def register(library: ModuleType) -> SimpleNamespace:
    """Make the classes for `library` and enter them in its registries.

    Args:
        library: lightning.pytorch, lightning.fabric, or the same of pytorch_lightning.

    Returns:
        The classes: NeuronAccelerator, FSDPPrecision, and the strategies by Lightning's names.
    """
    device = accelerator(library)
    precision = _fsdp_precision(library)

    def on_neuron(strategy: Any, plugin: Any) -> Any:
        """`plugin`, or one that does for this device what it does for CUDA."""
        if strategy.accelerator is not None and not isinstance(strategy.accelerator, device):
            return plugin  # "ddp" on another device
        if type(plugin) is library.plugins.MixedPrecision and plugin.device == "cuda":
            return library.plugins.MixedPrecision(plugin.precision, device=NAME)
        if type(plugin) is library.plugins.FSDPPrecision:
            return precision(plugin.precision)
        return plugin

    classes = {
        "SingleDeviceStrategy": _single(library),
        "DDPStrategy": _ddp(library),
        "FSDPStrategy": _fsdp(library),
        "ModelParallelStrategy": _model_parallel(library),
    }
    # What the Trainer calls precision_plugin is Fabric's precision.
    name = "precision_plugin" if hasattr(library, "Trainer") else "precision"
    for cls in classes.values():
        setattr(cls, name, _translated(getattr(cls, name), on_neuron))

    strategies = library.strategies
    entries = getattr(strategies, "StrategyRegistry", None) or strategies.STRATEGY_REGISTRY
    for entry, data in list(entries.items()):
        if data["strategy"] is strategies.DDPStrategy:
            about, arguments = data["description"], data["init_params"]
            entries.register(entry, classes["DDPStrategy"], about, override=True, **arguments)
    single, fsdp = classes["SingleDeviceStrategy"], classes["FSDPStrategy"]
    entries.register(NAME, single, "One NeuronCore", override=True)
    entries.register(FSDP, fsdp, "FSDP on NeuronCores", override=True)

    accelerators = library.accelerators
    device.register_accelerators(
        getattr(accelerators, "AcceleratorRegistry", None) or accelerators.ACCELERATOR_REGISTRY
    )
    return SimpleNamespace(NeuronAccelerator=device, FSDPPrecision=precision, **classes)


def _translated(inherited: property, translate: Any) -> property:
    """A property whose setter passes on what `translate` makes of a plugin."""
    get, set_ = inherited.fget, inherited.fset
    assert get is not None
    assert set_ is not None
    return property(get, lambda self, plugin: set_(self, translate(self, plugin)))


def _fsdp_precision(library: ModuleType) -> type[Any]:
    base: Any = library.plugins.FSDPPrecision

    class FSDPPrecision(base):  # type: ignore[misc] # both of Lightning's bases
        """FSDP's precision with autocast and the scaler of this device."""

        def __init__(self, precision: str, scaler: ShardedGradScaler | None = None) -> None:
            scaled = precision == "16-mixed"
            if scaler is not None and not scaled:
                raise ValueError(f"precision={precision!r} has no use for a scaler")
            # The base would make a scaler for CUDA.
            super().__init__("bf16-mixed" if scaled else precision)
            self.precision = precision
            self.scaler = (scaler or ShardedGradScaler(device=NAME)) if scaled else None

        def forward_context(self) -> Any:
            if "mixed" not in self.precision:
                return super().forward_context()
            half = torch.float16 if self.precision == "16-mixed" else torch.bfloat16
            return torch.autocast(NAME, dtype=half)

    return FSDPPrecision


def _single(library: ModuleType) -> type[Any]:
    base: Any = library.strategies.SingleDeviceStrategy

    class SingleDeviceStrategy(base):  # type: ignore[misc] # both of Lightning's bases
        """One NeuronCore, the one that `devices=` names."""

        def __init__(self, device: torch.device | str = NAME, **kwargs: Any) -> None:
            super().__init__(device, **kwargs)

        @property
        def parallel_devices(self) -> list[torch.device] | None:
            """None, so that Lightning sets what `devices=` named."""
            return None

        @parallel_devices.setter
        def parallel_devices(self, devices: list[torch.device]) -> None:
            if [device.type for device in devices] != [NAME]:
                raise ValueError(
                    f"strategy='{NAME}' is for one NeuronCore, accelerator='{NAME}' and devices=1 "
                    f"or devices=[index]; it was given {', '.join(map(str, devices))}. Several "
                    f"cores are for strategy='ddp' and '{FSDP}'."
                )
            (self._root_device,) = devices

    return SingleDeviceStrategy


def _ddp(library: ModuleType) -> type[Any]:
    base: Any = library.strategies.DDPStrategy

    class DDPStrategy(base):  # type: ignore[misc] # both of Lightning's bases
        """DDP that wraps modules of NeuronCores as PyTorch says to: without device_ids."""

        def determine_ddp_device_ids(self) -> list[int] | None:
            """What Lightning reads as: wrap it on a stream of CUDA's, on this device."""
            return None if self.root_device.type == NAME else super().determine_ddp_device_ids()

        def _determine_ddp_device_ids(self) -> list[int] | None:  # Fabric's name for it
            return None if self.root_device.type == NAME else super()._determine_ddp_device_ids()

        def configure_ddp(self) -> None:
            """Wrap the module; a communication hook is registered on this device, too."""
            super().configure_ddp()
            if self.root_device.type == NAME and self._ddp_comm_hook is not None:
                assert isinstance(self.model, DistributedDataParallel)
                hook = self._ddp_comm_hook
                hook = self._ddp_comm_wrapper(hook) if self._ddp_comm_wrapper else hook
                self.model.register_comm_hook(self._ddp_comm_state, hook)

    return DDPStrategy


def _fsdp(library: ModuleType) -> type[Any]:
    base: Any = library.strategies.FSDPStrategy

    class FSDPStrategy(base):  # type: ignore[misc] # both of Lightning's bases
        """FSDP whose mesh, given as `device_mesh=(replicas, shards)`, is of NeuronCores."""

        def setup_environment(self) -> None:
            # Lightning would make the mesh of CUDA devices.
            arguments = self.kwargs if hasattr(self, "kwargs") else self._fsdp_kwargs
            shape = arguments.get("device_mesh")
            if isinstance(shape, tuple):
                del arguments["device_mesh"]
            super().setup_environment()
            if isinstance(shape, tuple):
                arguments["device_mesh"] = init_device_mesh(NAME, shape)

    return FSDPStrategy


def _model_parallel(library: ModuleType) -> type[Any]:
    base: Any = library.strategies.ModelParallelStrategy

    class ModelParallelStrategy(base):  # type: ignore[misc] # both of Lightning's bases
        """FSDP2 and tensor parallel; only the precision is this device's."""

    return ModelParallelStrategy
