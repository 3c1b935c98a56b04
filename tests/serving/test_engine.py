"""Promises of the engine: the tokens of unbatched decoding, in a bounded cache, given back."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from torch_neuronx.serving import Engine, Event, Options, Request, Sampling
from torch_neuronx.serving.engine import FullError

from .models import LONGEST, MODELS, VOCABULARY, greedy

Named = tuple[str, PreTrainedModel]


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 1000 + length).choices(range(VOCABULARY), k=length))


def finish(engine: Engine) -> None:
    while engine.step():
        pass


def idle(engine: Engine) -> bool:
    return engine.blocks.used == engine.running == engine.waiting == 0


PROMPTS = [prompt(n) for n in (1, 7, 16, 33, 90)]


def test_tokens_of_generate(named: Named) -> None:
    """Several prompts at a time, in chunks, against `generate` for one after the other."""
    name, model = named
    model.generation_config.eos_token_id = None
    generate: Any = model.generate
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    found = [generate(torch.tensor([p]).to("neuron"), **options)[0].tolist() for p in PROMPTS]
    want = [tokens[len(p) :] for tokens, p in zip(found, PROMPTS, strict=True)]
    assert want == [greedy(name, p, 9) for p in PROMPTS]
    with Engine(model, Options(blocks=64, block_size=4, requests=3, step_tokens=20)) as engine:
        requests = [engine.submit(p, Sampling(max_tokens=9)) for p in PROMPTS]
        assert [r.result() for r in requests] == want
    assert idle(engine)
    assert model.config._attn_implementation == "sdpa"


def test_tokens_of_compiled_steps(named: Named) -> None:
    """The same, when steps of one token a request run programs for 1, 2, 4 and 5 requests."""
    name, model = named
    options = Options(blocks=64, block_size=4, requests=5, step_tokens=20, compiled=True)
    engine = Engine(model, options)
    with torch.device("cpu"):  # a state of this thread, not of the engine's
        assert list(engine.compile()) == [1, 2, 4, 5]
    with torch.compiler.set_stance("fail_on_recompile"), engine:  # there are no others
        requests = [
            engine.submit(p, Sampling(max_tokens=9 + i)) for i, p in enumerate((*PROMPTS, *PROMPTS))
        ]
        found = [r.result() for r in requests]
    want = [greedy(name, p, 9 + i) for i, p in enumerate((*PROMPTS, *PROMPTS))]
    assert found == want
    assert idle(engine)


WORK = st.tuples(
    st.integers(1, 60),  # tokens of the prompt
    st.integers(0, 2),  # which of the texts that begin alike
    st.integers(1, 8),  # tokens to generate
    st.integers(0, 12),  # the step before which it arrives
)


@settings(max_examples=15, deadline=None)
@given(
    work=st.lists(WORK, min_size=1, max_size=8),
    blocks=st.integers(17, 60),
    size=st.sampled_from([4, 8]),
    requests=st.integers(1, 5),
    step_tokens=st.integers(5, 40),
    share=st.booleans(),
)
def test_tokens_of_random_mixes(
    named: Named, work: list[tuple[int, int, int, int]], blocks: int, size: int, requests: int,
    step_tokens: int, share: bool,
) -> None:  # fmt: skip
    """Whatever comes when, in caches that are often too small for what runs."""
    name, model = named
    options = Options(blocks, size, requests, step_tokens, share_prefixes=share)
    engine = Engine(model, options)
    waiting = sorted((arrival, prompt(90, seed)[:n], count) for n, seed, count, arrival in work)
    submitted: list[Request] = []
    number = 0
    while waiting or engine.running or engine.waiting:
        while waiting and waiting[0][0] <= number:
            _, text, count = waiting.pop(0)
            submitted.append(engine.submit(text, Sampling(max_tokens=count)))
        engine.step()
        number += 1
        assert engine.blocks.used <= blocks
    engine.close()
    for request in submitted:
        assert request.finish == "length"
        want = greedy(name, tuple(request.prompt), request.sampling.max_tokens)
        assert request.output == want
    assert idle(engine)


def test_a_prefix_is_computed_once(model: PreTrainedModel) -> None:
    engine = Engine(model, Options(blocks=64, block_size=4))
    text = prompt(50)
    first = engine.submit((*text, 1, 2, 3), Sampling(max_tokens=2))
    finish(engine)
    assert (engine.statistics.computed, engine.statistics.shared) == (54, 0)
    second = engine.submit((*text, 9, 8), Sampling(max_tokens=2))
    finish(engine)
    # 12 blocks of 4 tokens are full and begin alike; 4 tokens of the prompt, and one generated.
    assert (second.shared, first.shared) == (48, 0)
    assert engine.statistics.computed == 54 + 5
    assert second.output == greedy("llama", (*text, 9, 8), 2)
    # All of the same text: its last token is computed, for what follows it.
    third = engine.submit(text[:48], Sampling(max_tokens=1))
    finish(engine)
    assert third.shared == 44
    engine.close()


def test_generated_text_is_a_prefix_too(model: PreTrainedModel) -> None:
    """The next turn of a conversation begins with the last one's answer."""
    engine = Engine(model, Options(blocks=64, block_size=4))
    first = engine.submit(prompt(10), Sampling(max_tokens=10))
    finish(engine)
    second = engine.submit((*prompt(10), *first.output, 5), Sampling(max_tokens=1))
    finish(engine)
    assert second.shared == 16  # of the 19 tokens whose keys the first has computed
    engine.close()


def test_200_mixed_requests(model: PreTrainedModel) -> None:
    """From eight threads: some cancelled, within the cache's bound; memory does not grow."""
    options = Options(blocks=40, block_size=4, requests=6, step_tokens=32)
    engine = Engine(model, options)
    before = torch.accelerator.memory_allocated()
    chance = random.Random(0)
    plans = [
        (prompt(chance.randint(1, 60), chance.randint(0, 3)), chance.randint(1, 6), i % 9 == 4)
        for i in range(200)
    ]
    made: dict[int, Request] = {}

    def client(numbers: range) -> None:
        for i in numbers:
            text, count, cancelled = plans[i]
            made[i] = engine.submit(text, Sampling(max_tokens=count))
            if cancelled:
                engine.cancel(made[i])

    with engine:
        threads = [threading.Thread(target=client, args=(range(k, 200, 8),)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(made) == 200
    for i, (text, count, cancelled) in enumerate(plans):
        want = greedy("llama", text, count)
        if made[i].finish == "cancelled":
            assert cancelled
            want = want[: len(made[i].output)]
        assert made[i].output == want
    statistics = engine.statistics
    assert sum(statistics.finished.values()) == 200
    assert engine.blocks.most_used <= options.blocks
    assert statistics.preemptions > 0
    assert idle(engine)
    # The cache was there before, and is gone.
    assert torch.accelerator.memory_allocated() < before


def test_preemption_loses_no_token(model: PreTrainedModel) -> None:
    """Two texts that fit one at a time, but not to their ends together."""
    engine = Engine(model, Options(blocks=10, block_size=4, share_prefixes=False))
    requests = [engine.submit(prompt(16, seed), Sampling(max_tokens=20)) for seed in (1, 2)]
    finish(engine)
    assert [r.preemptions for r in requests] == [0, 1]  # the younger one
    for seed, request in zip((1, 2), requests, strict=True):
        assert request.output == greedy("llama", prompt(16, seed), 20)
        events = [request.events.get() for _ in range(20)]
        assert [e.token for e in events] == request.output  # each told once
        assert request.events.empty()
    assert idle(engine)
    engine.close()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelling_frees_blocks(model: PreTrainedModel, steps: int) -> None:
    """Of a request that waits, that is within its prompt, and that generates."""
    engine = Engine(model, Options(blocks=64, block_size=4, requests=2, step_tokens=30))
    request = engine.submit(prompt(50), Sampling(max_tokens=9))
    other = engine.submit(prompt(5), Sampling(max_tokens=9))
    for _ in range(steps):
        engine.step()
    engine.cancel(request)
    engine.cancel(request)
    finish(engine)
    engine.cancel(request)
    assert (request.finish, other.finish) == ("cancelled", "length")
    assert request.output == greedy("llama", prompt(50), 9)[: len(request.output)]
    assert engine.statistics.finished == {"cancelled": 1, "length": 1}
    assert idle(engine)
    engine.close()


def test_a_failing_step_frees_blocks(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests are told why; the engine goes on with others."""
    engine = Engine(model, Options(blocks=64, block_size=4))
    forward = type(model).forward

    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    requests = [engine.submit(prompt(n), Sampling(max_tokens=5)) for n in (5, 9)]
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward", failing)
        engine.step()
    assert [r.finish for r in requests] == ["failed", "failed"]
    with pytest.raises(RuntimeError, match="the request failed: out of memory"):
        requests[0].result()
    assert idle(engine)
    assert type(model).forward is forward
    again = engine.submit(prompt(9), Sampling(max_tokens=5))
    finish(engine)
    assert again.output == greedy("llama", prompt(9), 5)
    engine.close()


def test_a_failing_listener_ends_its_request_only(model: PreTrainedModel) -> None:
    def listener(_: Event) -> None:
        raise OSError("nobody listens")

    engine = Engine(model, Options(blocks=64, block_size=4))
    bad = engine.submit(prompt(5), Sampling(max_tokens=9), listener)
    good = engine.submit(prompt(6), Sampling(max_tokens=9))
    finish(engine)
    assert (bad.finish, good.finish) == ("failed", "length")
    assert isinstance(bad.error, OSError)
    assert idle(engine)
    engine.close()


def test_stop_tokens_and_iteration(model: PreTrainedModel) -> None:
    text = greedy("llama", prompt(20), 12)
    stop = text[5]
    with Engine(model, Options(blocks=64, block_size=4)) as engine:
        sampling = Sampling(max_tokens=12, stop_tokens=frozenset({stop}))
        request = engine.submit(prompt(20), sampling)
        assert list(request) == text[: text.index(stop) + 1]
        assert request.finish == "stop"


def test_sampling_repeats_with_its_seed(model: PreTrainedModel) -> None:
    """Beside other requests, and where blocks run out, the same tokens are drawn."""
    sampling = Sampling(max_tokens=20, temperature=1.0, top_p=0.9, seed=7)
    alone = Engine(model, Options(blocks=64, block_size=4))
    first = alone.submit(prompt(16, 2), sampling)
    finish(alone)
    alone.close()
    crowded = Engine(model, Options(blocks=10, block_size=4))
    crowded.submit(prompt(16, 1), Sampling(max_tokens=20))
    second = crowded.submit(prompt(16, 2), sampling)
    finish(crowded)
    crowded.close()
    assert second.preemptions == 1
    assert first.output == second.output != greedy("llama", prompt(16, 2), 20)


def test_a_tiny_top_p_is_greedy(model: PreTrainedModel) -> None:
    engine = Engine(model, Options(blocks=64, block_size=4))
    request = engine.submit(prompt(16), Sampling(max_tokens=9, temperature=2.0, top_p=1e-9))
    finish(engine)
    engine.close()
    assert request.output == greedy("llama", prompt(16), 9)


def test_closing_without_draining(model: PreTrainedModel) -> None:
    engine = Engine(model, Options(blocks=64, block_size=4, requests=1))
    engine.start()
    requests = [engine.submit(prompt(20), Sampling(max_tokens=100)) for _ in range(4)]
    engine.close(drain=False)
    assert {r.finish for r in requests} == {"cancelled"}
    with pytest.raises(FullError, match="the engine is stopping"):
        engine.submit(prompt(3))
    assert idle(engine)


def test_a_mistake_of_the_engine_ends_its_requests(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    engine = Engine(model, Options(blocks=64, block_size=4))

    def wrong() -> None:
        raise AssertionError("wrong")

    monkeypatch.setattr(engine._scheduler, "next_step", wrong)
    request = engine.submit(prompt(3))
    engine.start()
    with pytest.raises(RuntimeError, match="the request failed: wrong"):
        request.result()
    monkeypatch.undo()
    engine.close()
    assert [s.exc_type for s in seen] == [AssertionError]


def test_refused_requests(model: PreTrainedModel) -> None:
    engine = Engine(model, Options(blocks=10, block_size=4, queue=1))
    for text, count, expected in [
        ((), 1, "the prompt has no tokens"),
        ((1, VOCABULARY), 1, f"token {VOCABULARY} is not in the vocabulary of {VOCABULARY}"),
        ((-1,), 1, "token -1 is not"),
        (prompt(30), 11, "30 tokens and 11 new ones are more than the 40 that fit"),
    ]:
        with pytest.raises(ValueError, match=expected):
            engine.submit(text, Sampling(max_tokens=count))
    engine.submit(prompt(30), Sampling(max_tokens=10))
    with pytest.raises(FullError, match="1 requests are waiting"):
        engine.submit(prompt(3))
    finish(engine)
    engine.close()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"temperature": -1}, "temperature must be between 0 and 2, got -1"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0"),
    ],
)
def test_refused_sampling(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Sampling(**values)


def test_refused_options() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Options(blocks=0)
    with pytest.raises(ValueError, match="a step of 8 tokens has no room for the next token of"):
        Options(step_tokens=8, requests=9)


def test_steps_are_compiled_on_the_device_only() -> None:
    with pytest.raises(ValueError, match="compiled on the device 'neuron', not on cpu"):
        Engine(MODELS["llama"](), Options(compiled=True))


def test_refused_models() -> None:
    config = MistralConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, sliding_window=4,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"MistralForCausalLM has layers with .*sliding_window=4"):
        Engine(MistralForCausalLM(config))


def test_the_attention_needs_the_engine() -> None:
    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, max_position_embeddings=LONGEST,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.set_attn_implementation("torch_neuronx_paged")
    with pytest.raises(ValueError, match="is for the engine of torch_neuronx"):
        model(torch.tensor([[1, 2]]))
