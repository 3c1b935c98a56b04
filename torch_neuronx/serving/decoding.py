"""Steps in which every request has one token, compiled: a program for 1, 2, 4, 8, ... requests.

A program has one shape. A step of five requests runs the program for eight, whose three other rows
are a token that nobody asked for; its keys go into the block of the cache that belongs to nobody.
The block table has columns for the longest sequence, of which a row's length says how many count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["CompiledSteps", "Row", "buckets"]


@dataclass(frozen=True)
class Row:
    """The next token of a sequence.

    Attributes:
        token: Whose keys and values are computed.
        position: Of the token in its sequence.
        slot: Of the cache, for its keys and values.
        blocks: Of the sequence.
    """

    token: int
    position: int
    slot: int
    blocks: Sequence[int]


def buckets(requests: int) -> list[int]:
    """Return the numbers of rows that there are programs for: powers of two, and the most."""
    return [*(1 << k for k in range((requests - 1).bit_length())), requests]


class CompiledSteps:
    """The programs of a model, which are compiled when they are first needed.

    Attributes:
        sizes: Rows that there is a program for.
        nobody: What fills up.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Tensor, Tensor], Tensor],
        *,
        requests: int,
        columns: int,
        nobody: Row,
        device: torch.device,
    ) -> None:
        """Compile nothing yet.

        Args:
            step: What is compiled. Takes int64 [3, rows], tokens, positions and slots; int32
                [rows, 1 + columns], lengths and block table; and int32 [rows + 1], 0, 1, 2, ...;
                returns logits [rows, vocabulary].
            requests: Rows at most.
            columns: Blocks of the longest sequence.
            nobody: What fills up.
            device: Of the model.

        Raises:
            ValueError: The device has no compiler.
        """
        if device.type != "neuron":
            raise ValueError(f"steps are compiled on the device 'neuron', not on {device}")
        self.sizes = buckets(requests)
        self.nobody = nobody
        self._columns, self._device = columns, device
        self._step: Callable[..., Tensor] = torch.compile(  # type: ignore[call-overload]
            step,
            backend="neuron",
            fullgraph=True,
            dynamic=False,
            # Engines share the code of `step`; each is to count its own programs. They are twice as
            # many if a thread steps whose state is another than that of `Engine.compile`.
            isolate_recompiles=True,
            recompile_limit=2 * len(self.sizes),
        )
        self._starts = {
            size: torch.arange(size + 1, dtype=torch.int32).to(device) for size in self.sizes
        }

    def run(self, rows: Sequence[Row]) -> Tensor:
        """Return logits [rows, vocabulary]."""
        size = next(size for size in self.sizes if size >= len(rows))
        words = np.empty((3, size), dtype=np.int64)
        table = np.zeros((size, 1 + self._columns), dtype=np.int32)
        filler = [self.nobody] * (size - len(rows))
        for i, row in enumerate([*rows, *filler]):
            words[:, i] = row.token, row.position, row.slot
            table[i, 0] = row.position + 1
            table[i, 1 : 1 + len(row.blocks)] = row.blocks
        logits = self._step(
            torch.from_numpy(words).to(self._device),
            torch.from_numpy(table).to(self._device),
            self._starts[size],
        )
        return logits[: len(rows)]
