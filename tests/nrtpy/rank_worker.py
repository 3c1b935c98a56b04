"""One rank: load the NEFFs of a folder and compare what they give with what JAX gave.

    torchrun ... -m tests.nrtpy.rank_worker FOLDER [traced]

"traced": with a process group of PyTorch's, whose store the ranks then meet at, and a traced model
with a collective besides.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import nrtpy

EPS = float(np.finfo(np.float32).eps)


def check_neffs(folder: Path, rank: int, size: int, core: int) -> None:
    for path in sorted(folder.glob("*.neff")):
        model = nrtpy.NrtpyModel.load_from_neff(
            path, core_id=core, cc_enabled=True, rank_id=rank, world_size=size
        )
        data = np.load(path.with_suffix(".npz"))
        count = sum(name.startswith("in0_") for name in data)
        for _ in range(2):
            inputs = {
                name: nrtpy.NrtpyTensor.from_numpy(data[f"in{rank}_{number}"], name, core)
                for number, name in enumerate(model.input_tensors_info)
            }
            assert len(inputs) == count
            results = model(inputs)
            assert results is not None
            for number, result in enumerate(results.values()):
                got, want = result.numpy(), data[f"out{rank}_{number}"]
                assert got.dtype == want.dtype, path
                # Sums of as many numbers as there are ranks, in another order than XLA's, and in
                # a training step products of 32 behind that.
                np.testing.assert_allclose(
                    got, want, rtol=0, atol=64 * size * EPS * max(1.0, np.abs(want).max())
                )
        sys.stdout.write(f"rank {rank}: {path.stem} agrees\n")


def check_traced(folder: Path, rank: int, size: int, core: int) -> None:
    """A traced model names the process group; whoever loads it has one of that name."""
    import torch  # noqa: PLC0415 - nrtpy's users need not have it
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed import _functional_collectives as functional  # noqa: PLC0415

    import torch_neuronx  # noqa: PLC0415

    torch.neuron.set_device(core)  # type: ignore[attr-defined]

    world = dist.group.WORLD
    assert world is not None

    def mean(x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = functional.all_reduce(x * 2, "sum", world)
        return total / size

    x = torch.full((4,), float(rank))
    path = folder / f"traced{rank}.pt"
    torch.jit.save(torch_neuronx.trace(mean, x), path)
    loaded = torch.jit.load(path)
    torch_neuronx.move_trace_to_device(loaded, core)
    assert torch.equal(loaded(x), torch.full((4,), float(size - 1)))
    sys.stdout.write(f"rank {rank}: traced agrees\n")


def main(folder: Path, *, traced: bool) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    core = int(os.environ["LOCAL_RANK"])
    if traced:
        import torch.distributed as dist  # noqa: PLC0415

        dist.init_process_group("neuron")
    check_neffs(folder, rank, size, core)
    if traced:
        check_traced(folder, rank, size, core)
        nrtpy.reset()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), traced="traced" in sys.argv[2:])
