"""DataLoader: pinning and worker processes."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

ITEMS = TensorDataset(torch.arange(20.0).view(20, 1), torch.arange(20))


class OnDevice(Dataset[torch.Tensor]):
    """Samples that are on the device already."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index), device="neuron")


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches(workers: int) -> None:
    loader = DataLoader(ITEMS, batch_size=5, pin_memory=True, num_workers=workers)
    seen = []
    for values, labels in loader:
        assert values.is_pinned()
        assert labels.is_pinned()
        moved = values.to("neuron", non_blocking=True)
        seen += moved.flatten().tolist()
        assert labels.to("neuron", non_blocking=True).tolist() == moved.flatten().tolist()
    assert seen == list(range(20))


def test_workers_started_after_the_device_was_used() -> None:
    # The workers are forked from a process that holds the device; they may not touch it, and
    # don't have to.
    torch.ones(1, device="neuron")
    loader = DataLoader(ITEMS, batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert sum(int(labels.sum()) for _, labels in loader) == 190


def test_samples_on_the_device() -> None:
    batches = list(DataLoader(OnDevice(), batch_size=2))
    assert [b.device.type for b in batches] == ["neuron", "neuron"]
    assert batches[1].tolist() == [[2, 2], [3, 3]]


def test_a_forked_worker_that_touches_the_device_is_told_why() -> None:
    torch.ones(1, device="neuron")
    loader = DataLoader(OnDevice(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match="you must use the 'spawn' start method"):
        list(loader)


def test_shuffling_is_the_same_with_a_device_default() -> None:
    def order() -> list[int]:
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(ITEMS, batch_size=20, shuffle=True, generator=generator)
        (batch,) = loader
        return [int(i) for i in batch[1]]

    expected = order()
    torch.ones(1, device="neuron")
    assert order() == expected
