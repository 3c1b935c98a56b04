"""What clients refuse because of a fixed list; it works with the patches of docs/upstream."""

# `bucket: dist.GradBucket` of a hook is compared as it is, so annotations are not strings here.
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

CORE = "neuron:1"


def flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    shape = (1, 2, 16, 8)
    q, k, v = (torch.randn(shape, device=CORE, requires_grad=True) for _ in range(3))

    def causal(b: Any, h: Any, query: Any, key: Any) -> Any:
        return query >= key

    mask = create_block_mask(causal, None, None, 16, 16, device=CORE)
    got: Any = flex_attention(q, k, v, block_mask=mask)
    want = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(got, want)
    ours = torch.autograd.grad(got.sum(), (q, k, v))
    torch.testing.assert_close(ours, torch.autograd.grad(want.sum(), (q, k, v)))


def bf16_hook() -> None:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
        bf16_compress_hook,
    )
    from torch.nn.parallel import DistributedDataParallel

    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)  # type: ignore[attr-defined] # not in its list
        dist.init_process_group("neuron", store=store, rank=0, world_size=1)
        try:
            model = DistributedDataParallel(nn.Linear(4, 4, bias=False).to("neuron"))
            model.register_comm_hook(None, bf16_compress_hook)
            inputs = torch.randn(8, 4, device="neuron")
            model(inputs).sum().backward()
            gradient = model.module.weight.grad
            exact = inputs.sum(0).expand(4, 4)
            torch.testing.assert_close(gradient, exact.bfloat16().float(), rtol=2**-7, atol=0.0)
        finally:
            dist.destroy_process_group()


def safetensors_device() -> None:
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.safetensors"
        save_file({"x": torch.arange(4.0)}, path)
        for name, core in ((CORE, CORE), ("neuron", "neuron:0")):
            loaded = load_file(path, device=name)["x"]
            assert str(loaded.device) == core
            assert loaded.tolist() == [0, 1, 2, 3]


def accelerate_fp16() -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(mixed_precision="fp16")
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = model.weight.detach().clone()
        outputs = model(torch.ones(2, 4, device=accelerator.device))
        accelerator.backward(outputs.square().mean())
        optimizer.step()
        assert accelerator.device.type == "neuron"
        assert accelerator.scaler.is_enabled()
        assert not torch.equal(before, model.weight)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState._reset_state()


def accelerate_device_map() -> None:
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_max_memory

    asked = set(get_max_memory())
    assert asked == {0, 1, 2, 3, "cpu"}, asked
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert set(infer_auto_device_map(model).values()) == {0}


def randn_tensor() -> None:
    from diffusers.utils.torch_utils import randn_tensor

    index: Any  # which PyTorch takes, and diffusers' annotation doesn't
    for index in (0, 1):
        drawn = randn_tensor((2, 3), torch.Generator().manual_seed(0), device=index)
        assert str(drawn.device) == f"neuron:{index}"
        expected = torch.randn((2, 3), generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(drawn.cpu(), expected)


def lightning_one_device() -> None:
    from tests.clients import lightning_runs as runs

    for device in (None, "auto"):
        model = runs.Classifier()
        chosen = {"devices": [1]} if device is None else {"devices": 1}
        run = runs.trainer(accelerator=device or "neuron", **chosen)
        run.fit(model, runs.batches())
        assert model.devices == ({CORE} if device is None else {"neuron:0"})


PROGRAMS = {
    "flex_attention": (ValueError, "FlexAttention is only supported on CUDA, CPU, HPU, or MPS"),
    "bf16_hook": (TypeError, "BF16 all reduce communication hook required CUDA"),
    "safetensors_device": (Exception, "device neuron:1 is invalid"),
    "accelerate_fp16": (ValueError, "fp16 mixed precision requires a device in .*'neuron'"),
    "accelerate_device_map": (AssertionError, "{'cpu'}"),
    "randn_tensor": (RuntimeError, "Expected a 'neuron' device type for generator"),
    "lightning_one_device": (ValueError, "chosen the device 'cpu'"),
}
