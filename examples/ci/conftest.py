"""A library's own `conftest.py` has this line."""

pytest_plugins = ["neuron_fixture"]
