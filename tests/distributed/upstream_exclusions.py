"""Tests of PyTorch's DistributedTest that the neuron backend doesn't pass, each with its reason."""

from typing import Final

#: Tests that compare tensors within objects that were sent: each rank's own core is another device,
#: so these tensors stay on the host.
HOST_TENSORS: Final = frozenset(
    {
        "test_all_gather_object_default_pg",
        "test_all_gather_object_subgroup",
        "test_gather_object",
        "test_gather_object_subgroup",
    }
)
