"""Unmodified libraries on the device, with random weights: nothing is downloaded."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

GPT2 = GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=100, n_positions=64)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.device.type == "neuron"
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


def test_bert() -> None:
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=50)
    model = BertModel(config).eval()
    ids, mask = torch.arange(12).view(2, 6), torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        model.to("neuron")
        got = model(ids.to("neuron"), attention_mask=mask.to("neuron")).last_hidden_state
    close(got, expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_gpt2_loss_and_gradients(attention: str) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2)
    model.set_attn_implementation(attention)
    model.eval()
    ids = torch.arange(20).view(2, 10)
    results = []
    for place in ("cpu", "neuron"):
        model.to(torch.device(place)).zero_grad()  # type: ignore[arg-type]
        out = model(ids.to(place), labels=ids.to(place))
        out.loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        # Moving the model moves its gradients too, hence the copies.
        results.append([t.detach().clone() for t in (out.loss, out.logits, *grads)])
    for expected, got in zip(*results, strict=True):
        close(got, expected)


def test_tied_weights_stay_tied() -> None:
    model = GPT2LMHeadModel(GPT2).to("neuron")  # type: ignore[arg-type]
    assert model.lm_head.weight is model.transformer.wte.weight


def test_generation_is_the_same_text() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.tensor([[5, 6, 7]])
    expected = model.generate(prompt, max_new_tokens=12, do_sample=False)
    model.to("neuron")
    got = model.generate(prompt.to("neuron"), max_new_tokens=12, do_sample=False)
    assert got.device.type == "neuron"
    assert got.tolist() == expected.tolist()
    sampled = model.generate(prompt.to("neuron"), max_new_tokens=5, do_sample=True)
    assert sampled.shape == (1, 8)


def test_t5() -> None:
    torch.manual_seed(0)
    config = T5Config(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        vocab_size=50,
    )
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config).eval()
    ids = torch.arange(8).view(1, 8)
    with torch.no_grad():
        expected = model(ids, labels=ids).logits
        model.to("neuron")
        close(model(ids.to("neuron"), labels=ids.to("neuron")).logits, expected)


def test_vit() -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
    )
    model = ViTForImageClassification(config).eval()
    pixels = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(pixels).logits
        close(model.to("neuron")(pixels.to("neuron")).logits, expected)


def test_device_map_puts_a_saved_model_on_the_device(tmp_path: object) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2)
    model.save_pretrained(str(tmp_path))
    loaded = GPT2LMHeadModel.from_pretrained(str(tmp_path), device_map="neuron:1")
    assert {p.device for p in loaded.parameters()} == {torch.device("neuron:1")}
    assert loaded.lm_head.weight.cpu().equal(model.lm_head.weight)


def test_accelerator_picks_the_device() -> None:
    accelerator = Accelerator(mixed_precision="bf16")
    assert accelerator.device.type == "neuron"
    set_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))
    loader = DataLoader(data, batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(5):
        for x, y in loader:
            assert x.device.type == "neuron"
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert next(model.parameters()).device.type == "neuron"


class Repeat(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same sixteen tokens again and again: a model can only learn them by heart."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(16)
        return {"input_ids": ids, "labels": ids}


def test_trainer(tmp_path: object) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Repeat())
    assert arguments.device.type == "neuron"
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert next(model.parameters()).device.type == "neuron"
