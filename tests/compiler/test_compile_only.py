"""Compiling without running: files for any target, zeros as results, nothing changed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torch_neuronx
from neuronxcc.neff import read_neff
from neuronxcc.options import OptionError
from torch_neuronx import CompileOnlyError, compile_only, neuron, neuron_dynamo_backend
from torch_neuronx._compile_only import OPEN, active
from torch_neuronx.neuron_dynamo_backend import get_model_name, set_model_name

Compile = Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield tmp_path / "cache"
    set_model_name("")
    assert not OPEN


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x) + 1


def compiled() -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(function, backend="neuron")


def value() -> torch.Tensor:
    return torch.linspace(-2, 2, 12).reshape(3, 4).to("neuron")


def close(result: torch.Tensor) -> bool:
    return torch.allclose(result.cpu(), function(value().cpu()), atol=1e-6)


def test_files_for_another_target(place: Path) -> None:
    f = compiled()
    with compile_only("trn3") as request:
        result = f(value())
        f(value())
    assert request.target == "trn3"
    (path,) = request.paths
    assert path.is_relative_to(place)
    neff = read_neff(path.read_bytes())
    assert neff.info.target == "trn3"
    assert "--target=trn3" in neff.info.flags
    assert result.shape == (3, 4)
    assert (result.dtype, result.device.type) == (torch.float32, "neuron")
    assert not result.any()


def test_afterwards_it_runs() -> None:
    f = compiled()
    with compile_only("trn1"):
        assert not f(value()).any()
    assert close(f(value()))
    with compile_only():
        assert not f(value()).any()
    assert close(f(value()))


def test_layouts_and_types_of_results() -> None:
    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return (
            y.t(),
            (y > 0),
            y.to(torch.bfloat16).sum(0),
            torch.zeros(0, 3, device=x.device),
            y.long(),
        )

    expected = several(value())
    with compile_only():
        results = torch.compile(several, backend="neuron")(value())
    for result, wanted in zip(results, expected, strict=True):
        assert (result.shape, result.dtype, result.device) == (
            wanted.shape,
            wanted.dtype,
            wanted.device,
        )
        assert result.stride() == wanted.stride()
        assert not result.any()


def test_nothing_is_updated_and_nothing_is_drawn() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(x)
        return torch.nn.functional.dropout(x, 0.5) + y

    x, y = value(), value()
    state = neuron.get_rng_state()
    f = torch.compile(update, backend="neuron")
    with compile_only() as request:
        f(x, y)
    assert len(request.paths) == 1
    assert torch.equal(y.cpu(), value().cpu())
    assert torch.equal(neuron.get_rng_state(), state)
    f(x, y)
    assert torch.equal(y.cpu(), (value() * 2).cpu())


def test_backward_in_its_own_thread() -> None:
    x = value().requires_grad_()
    with compile_only("trn1") as request:
        compiled()(x).sum().backward()
    names = [read_neff(path.read_bytes()).info.name for path in request.paths]
    assert [name.partition(".")[2] for name in names] == ["forward", "backward"]
    assert x.grad is not None
    assert not x.grad.any()


def test_a_directory_of_its_own(tmp_path: Path, place: Path) -> None:
    with compile_only(cache_dir=tmp_path / "out", options={"optlevel": 1}) as request:
        torch.compile(function, backend="neuron", options={"--optlevel": 3})(value())
    assert request.paths[0].is_relative_to(tmp_path / "out")
    assert not place.exists()
    assert "--optlevel=1" in read_neff(request.paths[0].read_bytes()).info.flags


def test_nested() -> None:
    f = compiled()
    with compile_only("trn1") as outer:
        with compile_only("trn3") as inner:
            assert active() is inner
            f(value())
        assert active() is outer
        f(value())
    assert active() is None
    targets = [read_neff(r.paths[0].read_bytes()).info.target for r in (outer, inner)]
    assert targets == ["trn1", "trn3"]


def test_wrong_options_are_told_at_once() -> None:
    with (
        pytest.raises(OptionError, match=re.escape("[NCC_EARG001] --lnc=2 is not valid")),
        compile_only("trn1", options={"lnc": 2}),
    ):
        pytest.fail("opened")
    with pytest.raises(OptionError, match="--target=trn9 is not valid"), compile_only("trn9"):
        pytest.fail("opened")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    f = compiled()
    with warnings.catch_warnings(), compile_only("trn3", cache_dir=tmp_path / "file" / "x"):
        warnings.simplefilter("ignore")
        with pytest.raises(CompileOnlyError, match="was compiled for trn3, but its NEFF could not"):
            f(value())


def test_model_names(place: Path) -> None:
    set_model_name("unet")
    assert get_model_name() == "unet"
    compiled()(value())
    (link,) = [path for path in place.rglob("*.neff") if path.is_symlink()]
    assert re.fullmatch(r"unet\.graph\d+\.inference\.neff", link.name)
    assert read_neff(link.read_bytes()).info.name == link.name.removesuffix(".neff")
    named = torch.compile(
        lambda x: x.exp(), backend="neuron", options={"model_name": "text encoder"}
    )
    named(value())
    assert list(place.rglob("text_encoder.graph*.neff"))
    with pytest.raises(TypeError, match="a model name is a str, got int"):
        set_model_name(3)  # type: ignore[arg-type]


def test_the_name_and_the_place_in_the_source_are_not_in_the_key(place: Path) -> None:
    compiled()(value())
    torch._dynamo.reset()
    set_model_name("other")

    def elsewhere(y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(y) + 1

    torch.compile(elsewhere, backend="neuron")(value())
    assert len(list(place.rglob("model.neff"))) == 1


def test_with_a_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_DUMP", str(tmp_path / "dump"))
    with compile_only("trn3") as request:
        compiled()(value())
    assert len(request.paths) == 1
    assert list((tmp_path / "dump").rglob("*.txt"))


def test_public_names() -> None:
    assert torch_neuronx.compile_only is compile_only
    assert neuron_dynamo_backend.__all__ == ["get_model_name", "program_name", "set_model_name"]
