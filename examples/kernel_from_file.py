"""A kernel with a bug, run by the runtime alone: NKI writes it to a file, `nrtpy` loads it.

    python -m examples.kernel_from_file

The kernel picks rows of a table. The number of one row is wrong, which no compiler can see: the
runtime says so when it runs. After the public tutorial "Test and debug a NKI kernel end-to-end".
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nrtpy import NrtError, NrtpyModel, NrtpyTensor

ROWS, WIDTH = 128, 16


@nki.jit
def pick(table: Any, rows: Any) -> Any:
    """Rows of a table, one per partition."""
    index = nl.load(rows)
    picked = nl.ndarray((ROWS, WIDTH), nl.float32, nl.sbuf)
    nisa.dma_copy(
        dst=picked,
        src=table.ap([[WIDTH, ROWS], [1, WIDTH]], vector_offset=index, indirect_dim=0),
    )
    out = nl.ndarray((ROWS, WIDTH), nl.float32, nl.shared_hbm)
    nl.store(out, picked)
    return out


def main() -> None:
    table = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    rows = np.arange(ROWS, dtype=np.int32)[::-1].reshape(ROWS, 1).copy()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NKI_ARTIFACTS_DIR"] = folder
        pick(table, rows)
        del os.environ["NKI_ARTIFACTS_DIR"]
        model = NrtpyModel.load_from_neff(Path(folder) / "kernel.neff")
    print("inputs of kernel.neff:", ", ".join(model.input_tensors_info))

    inputs = {
        "table": NrtpyTensor.from_numpy(table, "table"),
        "rows": NrtpyTensor.from_numpy(rows, "rows"),
    }
    outputs = model(inputs)
    assert outputs is not None
    np.testing.assert_array_equal(outputs["output_0"].numpy(), table[::-1])
    print("right rows: equal to NumPy's")

    rows[5] = 99_999
    inputs["rows"].write_from_numpy(rows)
    try:
        model(inputs)
    except NrtError as error:
        print(f"a wrong row: {error}")
    else:
        raise AssertionError("row 99999 of 128 was read")


if __name__ == "__main__":
    main()
