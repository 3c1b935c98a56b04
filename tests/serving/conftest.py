"""The models, once for all tests; an engine gives its model back when it closes."""

import pytest
from transformers import PreTrainedModel

from .models import MODELS, on_neuron


@pytest.fixture(scope="package", params=MODELS)
def named(request: pytest.FixtureRequest) -> tuple[str, PreTrainedModel]:
    return request.param, on_neuron(request.param)


@pytest.fixture(scope="package")
def model() -> PreTrainedModel:
    return on_neuron("llama")
