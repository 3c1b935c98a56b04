"""The next token of each request, from what the model says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_neuronx.serving.request import Request

__all__ = ["Sampler"]


class Sampler:
    """Chooses tokens; keeps a random number generator for each request that needs one."""

    def __init__(self) -> None:
        self._generators: dict[int, torch.Generator] = {}

    def choose(self, requests: Sequence[Request], logits: Tensor) -> list[int]:
        """Return a token for each row of `logits`, [requests, vocabulary]."""
        tokens: list[int] = logits.argmax(-1).tolist()
        rows = [i for i, r in enumerate(requests) if r.sampling.temperature > 0]
        if rows:
            # By the host's generators, so that a seed means the same on every device.
            for i, row in zip(rows, logits[rows].float().cpu(), strict=True):
                tokens[i] = self._draw(requests[i], row)
        return tokens

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self._generators.pop(id(request), None)

    def _draw(self, request: Request, logits: Tensor) -> int:
        generator = self._generators.get(id(request))
        if generator is None:
            generator = self._generators[id(request)] = torch.Generator()
            if request.sampling.seed is None:
                generator.seed()
            else:
                generator.manual_seed(request.sampling.seed)
        chances = (logits / request.sampling.temperature).softmax(-1)
        ordered, tokens = chances.sort(descending=True, stable=True)
        # The likeliest token is always among them.
        behind = ordered.cumsum(-1) - ordered
        ordered = ordered.masked_fill(behind >= request.sampling.top_p, 0.0)
        return int(tokens[torch.multinomial(ordered, 1, generator=generator)])
