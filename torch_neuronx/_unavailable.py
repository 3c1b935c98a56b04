"""The stand-in for ``torch.neuron`` in a process in which the device could not be set up."""

import warnings
from types import ModuleType

import torch


class UnavailableModule(ModuleType):
    """A device module without a device.

    It answers what PyTorch and libraries ask of every accelerator, as a machine without one would,
    and names the reason wherever a user meets it.

    Attributes:
        failure: what made the device unavailable.
    """

    def __init__(self, failure: Exception) -> None:
        super().__init__("torch.neuron", "The neuron device is not available in this process.")
        self.failure = failure
        self._warned = False
        self._library: torch.library.Library | None = None

    def refuse_allocation(self) -> None:
        """Let ``device="neuron"`` fail with the reason instead of PyTorch's list of backends.

        To be called only when the native core, which has kernels of its own, was not loaded.
        """

        def refuse(*_args: object, **_kwargs: object) -> None:
            raise RuntimeError(self._message()) from self.failure

        # The registrations last as long as this object.
        self._library = torch.library.Library("aten", "IMPL")
        for operator in ("empty.memory_format", "empty_strided"):
            self._library.impl(operator, refuse, "PrivateUse1")

    # PyTorch reads these names from every device module.
    _initialized = False

    def is_available(self) -> bool:
        """Return False; the first call warns with the reason."""
        if not self._warned:
            self._warned = True
            warnings.warn(self._message(), RuntimeWarning, stacklevel=2)
        return False

    def device_count(self) -> int:
        """Return 0; the first call warns with the reason."""
        self.is_available()
        return 0

    def is_initialized(self) -> bool:
        """Return False."""
        return False

    def manual_seed(self, seed: int) -> None:
        """Do nothing: there is no generator to seed, and programs seed before they ask."""

    def manual_seed_all(self, seed: int) -> None:
        """Do nothing, as :meth:`manual_seed`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return no data types."""
        return []

    def _is_in_bad_fork(self) -> bool:
        return False

    def init(self) -> None:
        """Raise the reason."""
        raise RuntimeError(self._message()) from self.failure

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"torch.neuron.{name}: {self._message()}")

    def _message(self) -> str:
        return (
            "the neuron device is not available in this process: "
            f"{type(self.failure).__name__}: {self.failure}"
        )
