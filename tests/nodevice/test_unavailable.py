"""What torch.neuron says in a process without the device."""

import warnings

import pytest

from torch_neuronx._unavailable import UnavailableModule

REASON = "the neuron device is not available in this process: ValueError: no such machine"


@pytest.fixture
def module() -> UnavailableModule:
    return UnavailableModule(ValueError("no such machine"))


def test_asking_for_the_device_warns_once(module: UnavailableModule) -> None:
    with pytest.warns(RuntimeWarning, match=REASON):
        assert not module.is_available()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not module.is_available()
        assert module.device_count() == 0


def test_what_pytorch_asks_of_every_device_module_is_harmless(module: UnavailableModule) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.manual_seed(1)
        module.manual_seed_all(1)
        assert not module.is_initialized()
        assert not module._initialized
        assert not module._is_in_bad_fork()
        assert module.get_amp_supported_dtype() == []


def test_using_it_names_the_reason(module: UnavailableModule) -> None:
    with pytest.raises(RuntimeError, match=REASON) as caught:
        module.init()
    assert caught.value.__cause__ is module.failure
    with pytest.raises(AttributeError, match=f"torch.neuron.set_device: {REASON}"):
        module.set_device  # noqa: B018
    assert not hasattr(module, "_utils")
