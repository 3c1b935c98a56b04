"""One rank: load the NEFFs of a folder and compare what they give with what JAX gave.

torchrun ... -m tests.nrtpy.rank_worker FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import nrtpy

EPS = float(np.finfo(np.float32).eps)


def main(folder: Path) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    core = int(os.environ["LOCAL_RANK"])
    for path in sorted(folder.glob("*.neff")):
        model = nrtpy.NrtpyModel.load_from_neff(
            path, core_id=core, cc_enabled=True, rank_id=rank, world_size=size
        )
        data = np.load(path.with_suffix(".npz"))
        count = sum(name.startswith("in0_") for name in data)
        given = [data[f"in{rank}_{n}"] for n in range(count)]
        for _ in range(2):
            inputs = {
                name: nrtpy.NrtpyTensor.from_numpy(array, name, core)
                for name, array in zip(model.input_tensors_info, given, strict=True)
            }
            results = model(inputs)
            assert results is not None
            for number, result in enumerate(results.values()):
                got = result.numpy()
                want = data[f"out{rank}_{number}"]
                assert got.dtype == want.dtype, path
                # Sums of as many numbers as there are ranks, in another order than XLA's, and in
                # a training step products of 32 behind that.
                np.testing.assert_allclose(
                    got, want, rtol=0, atol=64 * size * EPS * max(1.0, np.abs(want).max())
                )
        sys.stdout.write(f"rank {rank}: {path.stem} agrees\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
