"""`enable_neuron_compile`, `neuron_warmup` and the methods made of them."""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from examples import small_pipelines as small
from neuronxcc.environment.compilation import TORCH_NEURONX_NEFF_CACHE_DIR
from tests.integrations import flows
from torch_neuronx.dynamo import backend
from torch_neuronx.integrations.diffusers import (
    add_pipeline_methods,
    enable_neuron_compile,
    neuron_warmup,
)

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

CACHE = TORCH_NEURONX_NEFF_CACHE_DIR.name
# See test_diffusers_flows.py.
TOLERANCE = 1e-4
STEP = {**flows.PIXART, "num_inference_steps": 2}


@pytest.fixture
def graphs() -> Iterator[list[str]]:
    """Names of the graphs that are compiled from now on."""
    names: list[str] = []

    def watch(graph: backend.CompiledGraph) -> None:
        names.append(graph.name)

    backend.OBSERVERS.append(watch)
    yield names
    backend.OBSERVERS.remove(watch)


def assert_same(got: flows.Picture, wanted: flows.Picture) -> None:
    np.testing.assert_allclose(got, wanted, atol=TOLERANCE, rtol=0)


def test_a_compiled_pipeline_keeps_its_manners(
    tmp_path: Path, graphs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, os.environ[CACHE])  # it comes back in the end
    wanted = flows.images(small.pixart(), **STEP)
    pipe = small.pixart().to("neuron")
    transformer = pipe.transformer
    enable_neuron_compile(pipe, cache_dir=tmp_path / "cache")
    assert os.environ[CACHE] == str(tmp_path / "cache")

    neuron_warmup(pipe, **STEP, generator=flows.seeded())
    assert len(graphs) == 3  # text encoder, transformer, decoder
    names = {path.name.partition(".graph")[0] for path in (tmp_path / "cache").rglob("*.graph*")}
    assert names == {"text_encoder", "transformer", "vae.decoder"}
    assert_same(flows.images(pipe, **STEP), wanted)
    assert len(graphs) == 3, "something was compiled after the warm-up"

    assert pipe.transformer is transformer
    assert isinstance(pipe.transformer, diffusers.PixArtTransformer2DModel)
    assert transformer.config.num_layers == 2
    assert pipe.dtype == torch.float32
    assert pipe.device.type == "neuron"
    pipe.save_pretrained(tmp_path / "pipe")
    loaded = diffusers.PixArtAlphaPipeline.from_pretrained(tmp_path / "pipe")
    assert loaded.transformer._compiled_call_impl is None
    weights = zip(loaded.transformer.parameters(), transformer.parameters(), strict=True)
    assert all(torch.equal(a, b.cpu()) for a, b in weights)
    duplicate = copy.deepcopy(transformer)
    assert duplicate._compiled_call_impl is None  # it would compute with the original's weights

    enable_neuron_compile(pipe, ["transformer"])  # again
    pipe.enable_model_cpu_offload(device="neuron")
    for _ in range(2):
        assert_same(flows.images(pipe, **STEP), wanted)
    assert transformer.device.type == "cpu"
    pipe.enable_sequential_cpu_offload(device="neuron")
    with pytest.raises(RuntimeError, match=r"'text_encoder' is compiled, but its weights"):
        flows.images(pipe, **STEP)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
def test_a_graph_that_breaks() -> None:
    """Group offloading moves weights within the model, so it needs `fullgraph=False`."""
    call = {**flows.CALL, "num_inference_steps": 1, "guidance_scale": 0.0}
    wanted = flows.images(small.sdxl(), **call)
    pipe = small.sdxl()
    enable_neuron_compile(pipe, "unet", fullgraph=False)
    cpu, neuron = torch.device("cpu"), torch.device("neuron")
    pipe.enable_group_offload(neuron, cpu, "block_level", num_blocks_per_group=1)
    assert_same(flows.images(pipe, **call), wanted)


def test_warming_up_leaves_no_traces(capsys: pytest.CaptureFixture[str]) -> None:
    pipe = small.pixart().to("neuron")
    pipe.scheduler = diffusers.EulerAncestralDiscreteScheduler()
    call = {**flows.PIXART, "num_inference_steps": 2, "output_type": "np"}

    def state() -> list[Any]:
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002
        return [
            pipe(**call).images,
            torch.rand(2),
            np.random.rand(2),  # noqa: NPY002
            torch.rand(2, device="neuron").cpu(),
        ]

    wanted = state()
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    generator = flows.seeded()
    latents = torch.randn(1, 4, 16, 16, device="neuron", generator=torch.Generator("neuron"))
    kept, before = latents.clone(), vars(pipe.scheduler).keys() - {"_internal_dict"}
    values = {name: copy.deepcopy(vars(pipe.scheduler)[name]) for name in before}
    neuron_warmup(pipe, **call, generator=generator, latents=latents)
    assert torch.equal(latents, kept)
    assert torch.equal(generator.get_state(), flows.seeded().get_state())
    assert {n: str(v) for n, v in values.items()} == {
        n: str(v) for n, v in vars(pipe.scheduler).items() if n in before
    }
    assert "progress_bar" not in vars(pipe)
    got = [
        pipe(**call).images, torch.rand(2), np.random.rand(2), torch.rand(2, device="neuron").cpu()  # noqa: NPY002
    ]  # fmt: skip
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not capsys.readouterr().err  # it took less than two seconds


def test_a_failing_warm_up_leaves_no_traces() -> None:
    pipe = small.pixart().to("neuron")
    torch.manual_seed(7)
    state = torch.get_rng_state()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        neuron_warmup(pipe, **{**flows.PIXART, "callback": stop, "callback_steps": 1})
    assert torch.equal(torch.get_rng_state(), state)
    assert "progress_bar" not in vars(pipe)


ALLOWED = "vae.encoder, vae.decoder, text_encoder, text_encoder_2, unet"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["unets"], f"models do not include 'unets'\n  allowed: {ALLOWED}"),
        ("scheduler", f"models do not include 'scheduler'\n  allowed: {ALLOWED}"),
        (["unet", "image_encoder"], f"has no 'image_encoder'\n  allowed: {ALLOWED}"),
        (["vae.quant_conv"], "models do not include 'vae.quant_conv'"),
    ],
)
def test_wrong_names(names: list[str] | str, message: str) -> None:
    pipe = small.sdxl()
    with pytest.raises(ValueError, match=re.escape(message)):
        enable_neuron_compile(pipe, names)
    assert pipe.unet._compiled_call_impl is None  # nothing was half done


def test_names_of_parts() -> None:
    pipe = small.sdxl()
    enable_neuron_compile(pipe, "vae.decoder")
    assert pipe.vae.decoder._compiled_call_impl is not None
    assert pipe.vae.encoder._compiled_call_impl is None
    assert pipe.unet._compiled_call_impl is None


def test_wrong_pipelines() -> None:
    pipe = small.sdxl()
    with pytest.raises(TypeError, match=r"got UNet2DConditionModel\n  remedy: .* model\.compile"):
        enable_neuron_compile(pipe.unet)
    with pytest.raises(TypeError, match="expected a DiffusionPipeline, got str"):
        neuron_warmup("a dog")
    pipe.unet = torch.compile(pipe.unet, backend="neuron")
    with pytest.raises(ValueError, match=r"'unet' is the result of torch\.compile.*\n.*_orig_mod"):
        enable_neuron_compile(pipe)


def test_without_diffusers(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = small.pixart()
    monkeypatch.setitem(sys.modules, "diffusers", None)
    for function in (enable_neuron_compile, neuron_warmup):
        with pytest.raises(ImportError, match=r"remedy: pip install 'diffusers==0\.42\.\*' 'tr"):
            function(pipe)
    with pytest.raises(ImportError, match="needs diffusers"):
        add_pipeline_methods()


@pytest.fixture
def methods() -> Iterator[None]:
    """Take methods that a test adds off the class again."""
    yield
    for name in ("enable_neuron_compile", "neuron_warmup"):
        if name in vars(diffusers.DiffusionPipeline):
            delattr(diffusers.DiffusionPipeline, name)


@pytest.mark.usefixtures("methods")
def test_methods() -> None:
    pipe = small.pixart()
    assert not hasattr(pipe, "neuron_warmup")  # not by importing
    add_pipeline_methods()
    add_pipeline_methods()
    pipe.enable_neuron_compile(model_names=["transformer"], fullgraph=True)
    assert pipe.transformer._compiled_call_impl is not None
    pipe.neuron_warmup(**STEP, output_type="latent")


@pytest.mark.usefixtures("methods")
def test_methods_that_diffusers_has() -> None:
    diffusers.DiffusionPipeline.neuron_warmup = print  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"DiffusionPipeline\.neuron_warmup exists"):
        add_pipeline_methods()
    assert not hasattr(diffusers.DiffusionPipeline, "enable_neuron_compile")
