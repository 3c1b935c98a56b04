"""GPT-2's training by TORCH_NEURONX_EXECUTOR=device: two steps, compared with the host."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR
from neuronxcc.options import Options
from nki.device import lower

from .dynamo_tools import watched

WIDTH, TOKENS, VOCAB = 64, 16, 128


def gpt2(n_layer: int = 2, **dropout: float) -> Any:
    names = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    chances: dict[str, Any] = dict.fromkeys(names, 0.0) | dropout
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=n_layer, n_head=4, n_positions=64,
        use_cache=False, bos_token_id=1, eos_token_id=2, **chances,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def trained(model: nn.Module, run: Callable[..., Any], ids: Tensor) -> list[Tensor]:
    """Losses of two steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(2):
        loss = run(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    return losses


# Dynamo looks at `.grad` of what the loss of transformers computes.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_gpt2_is_trained_by_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, "device")
    torch.compiler.reset()
    torch.manual_seed(0)
    model = gpt2()
    host = copy.deepcopy(model)
    ids = torch.randint(0, VOCAB, (2, TOKENS))
    wanted = trained(host, host, ids)
    model.to("neuron")
    with watched() as graphs:
        got = trained(model, torch.compile(model, backend="neuron"), ids.to("neuron"))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    # AdamW divides a gradient by its size, so that a small one's rounding is a share of the step of
    # 1e-3: 7e-5 was seen.
    for mine, its in zip(model.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), its.detach(), rtol=0, atol=3e-4)
    programs = [lower(graph.imported.graph, options=Options(lnc=2)) for graph in graphs]
    assert programs
    assert {program.coverage for program in programs} == {1.0}
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_dropout_draws_what_the_seed_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The masks are the device's, and what they leave is computed by instructions."""
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, "device")
    torch.compiler.reset()
    torch.manual_seed(0)
    model = gpt2(n_layer=1, resid_pdrop=0.1, embd_pdrop=0.2, attn_pdrop=0.3).to("neuron")
    eager = copy.deepcopy(model)
    ids = torch.randint(0, VOCAB, (2, TOKENS)).to("neuron")
    torch.manual_seed(7)
    wanted = trained(eager, eager, ids)
    torch.manual_seed(7)
    with watched() as graphs:
        got = trained(model, torch.compile(model, backend="neuron"), ids)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    programs = [lower(graph.imported.graph, options=Options(lnc=2)) for graph in graphs]
    assert {program.coverage for program in programs} == {1.0}
    kinds = [section.kind for program in programs for section in program.sections]
    assert kinds.count("random") == 4  # of the embedding, the attention, its result, and the MLP
    torch.compiler.reset()
