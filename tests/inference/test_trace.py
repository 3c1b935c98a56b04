"""`trace`: results, structure, devices, what a call refuses, states, the saved form."""

import collections
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import torch_neuronx
from tests import interpreter

# PyTorch deprecates TorchScript, which is how traced models are saved.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


class Cache(torch.nn.Module):
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.kv = torch.nn.Parameter(torch.zeros(3, 2), requires_grad=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32))

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        new = torch.index_copy(self.kv, 0, i, x)
        return new.sum(0) + self.calls, new


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def traced(net: Net) -> torch.jit.ScriptModule:
    return torch_neuronx.trace(net, torch.rand(2, 4))


# Two products of 4 and 8 terms, added in another order than PyTorch adds them.
TOLERANCE = 2 * (4 + 8) * torch.finfo(torch.float32).eps


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def test_equals_the_module(net: Net, traced: torch.jit.ScriptModule) -> None:
    assert isinstance(traced, torch.jit.ScriptModule)
    assert "neuron::forward" in str(traced.graph)
    x = torch.randn(2, 4)
    close(traced(x), net(x).detach())
    close(traced(x=x), net(x).detach())
    close(traced(torch.randn(4, 2).t().copy_(x)), net(x).detach())  # not contiguous


def test_outputs_are_where_all_inputs_are() -> None:
    both = torch_neuronx.trace(lambda x, y: (x + y, x * y), (torch.ones(3), torch.ones(3)))
    cpu, core = torch.ones(3), torch.ones(3, device="neuron:0")
    for x, y, place in ((cpu, cpu, "cpu"), (cpu, core, "cpu"), (core, core, "neuron:0")):
        assert [str(out.device) for out in both(x, y)] == [place, place]
    torch_neuronx.move_trace_to_device(both, 1)
    assert both(core, core)[0].device == core.device
    again = both(*both(core, core))
    assert torch.equal(again[0].cpu(), torch.full((3,), 3.0))
    with pytest.raises(ValueError, match=r"'x' \(number 0\) is on neuron:0, input 'y'.*neuron:1"):
        both(core, torch.ones(3, device="neuron:1"))


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.rand(3, 4), r"'x' \(number 0\) must be float32\[2, 4\] .*, got float32\[3, 4\]"),
        (torch.rand(8), r"got float32\[8\]"),
        (torch.rand(2, 4).double(), r"must be float32\[2, 4\] as traced, got float64\[2, 4\]"),
        (torch.rand(2, 4).to_sparse(), "must be a plain"),
    ],
)  # fmt: skip
def test_wrong_inputs(traced: torch.jit.ScriptModule, x: torch.Tensor, text: str) -> None:
    with pytest.raises(torch_neuronx.InputError, match="status 1002.*" + text) as caught:
        traced(x)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RuntimeError)
    assert "TorchScript" not in str(caught.value)


def leaves() -> st.SearchStrategy[Any]:
    return st.sampled_from([(), (1,), (2, 3), (0, 2)])


@given(
    st.recursive(
        leaves().map(torch.ones),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(tuple),
            leaves().flatmap(
                lambda shape: st.integers(1, 3).map(lambda n: [torch.ones(shape)] * n)
            ),
            leaves().flatmap(
                lambda shape: st.sets(st.sampled_from("abc"), min_size=1).map(
                    lambda keys: {key: torch.ones(shape) for key in sorted(keys)}
                )
            ),
        ),
        max_leaves=5,
    )
)
@settings(max_examples=12, deadline=None)
def test_structures(structure: Any) -> None:
    """Whatever goes in comes out doubled, in the same structure."""

    def double(x: Any) -> Any:
        return pytree.tree_map(lambda t: 2 * t, x)

    numbered = pytree.tree_map(torch.rand_like, structure)
    got = torch_neuronx.trace(double, (numbered,))(numbered)
    wanted = double(numbered)
    assert pytree.tree_structure(got) == pytree.tree_structure(wanted)
    for one, other in zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True):
        assert torch.equal(one, other)


@dataclasses.dataclass
class Record:
    a: torch.Tensor
    b: torch.Tensor | None = None


pytree.register_dataclass(Record)
Pair = collections.namedtuple("Pair", "u v")  # noqa: PYI024 - as users write them


def test_named_results() -> None:
    def function(x: torch.Tensor, *, scale: torch.Tensor) -> Any:
        mixed = {"t": x * scale, "n": None, "i": 3, "l": [x, (x,)]}
        return Pair(x + 1, [x]), Record(x - 1), mixed

    x, scale = torch.rand(2), torch.rand(2)
    traced = torch_neuronx.trace(function, {"x": x, "scale": scale})
    pair, record, mixed = traced(x=x, scale=scale)
    assert type(pair).__name__ == "Pair"
    assert torch.equal(pair.u, x + 1)
    assert list(record) == ["a"]
    assert (mixed["n"], mixed["i"]) == (None, 3)
    assert torch.equal(mixed["l"][1][0], x)
    with pytest.warns(UserWarning, match="by place for 'scale'"):
        torch_neuronx.trace(function, (x, scale))


def test_checks_of_structure() -> None:
    traced = torch_neuronx.trace(lambda d, n: d["a"] * n, ({"a": torch.ones(2)}, 3))
    with pytest.raises(torch_neuronx.InputError, match=r"input 'd' must have the keys \['a'\]"):
        traced({"a": torch.ones(2), "b": torch.ones(2)}, 3)
    with pytest.raises(torch_neuronx.InputError, match="was 3 when the model was traced"):
        traced({"a": torch.ones(2)}, 4)


def test_states_are_updated_and_saved(tmp_path: Path) -> None:
    cache = Cache()
    example = (torch.ones(1, 2), torch.tensor([0]))
    traced = torch_neuronx.trace(cache, example, input_output_aliases={cache.kv: 1})
    assert traced(*example).tolist() == [2.0, 2.0]
    assert traced(torch.ones(1, 2), torch.tensor([1])).tolist() == [4.0, 4.0]
    assert not cache.kv.any()
    torch.jit.save(traced, tmp_path / "cache.pt")
    loaded = torch.jit.load(tmp_path / "cache.pt")
    assert loaded(torch.ones(1, 2), torch.tensor([2])).tolist() == [6.0, 6.0]
    with pytest.raises(ValueError, match="neither a parameter or buffer"):
        torch_neuronx.trace(cache, example, input_output_aliases={torch.ones(1): 0})
    with pytest.raises(torch_neuronx.TraceError, match=r"output 0 is .*\[2\], but the state"):
        torch_neuronx.trace(cache, example, input_output_aliases={cache.kv: 0})
    with pytest.raises(ValueError, match="updates the state"):
        torch_neuronx.dynamic_batch(traced)


@pytest.mark.parametrize("make", [lambda: torch.ones(2), lambda: torch.ones(4)[::2],
                                  lambda: torch.ones(2, device="neuron:1")])  # fmt: skip
def test_inputs_updated_in_place(make: Any) -> None:
    traced = torch_neuronx.trace(lambda x: x.add_(1) * 2, torch.ones(2))
    x = make()
    assert traced(x).tolist() == [4.0, 4.0]
    assert x.tolist() == [2.0, 2.0]


_FRESH = """
import sys, torch
folder = sys.argv[1]
model = torch.jit.load(folder + "/model.pt")
x, wanted = torch.load(folder + "/data.pt")
assert torch.equal(model(x), wanted)
print("same bits")
"""


def test_another_process(tmp_path: Path, net: Net) -> None:
    traced = torch_neuronx.trace(net, torch.rand(2, 4), inline_weights_to_neff=False)
    x = torch.rand(2, 4)
    torch.jit.save(traced, tmp_path / "model.pt")
    torch.save((x, traced(x)), tmp_path / "data.pt")
    done = interpreter.run(["-c", _FRESH, str(tmp_path)])
    assert done.stdout == "same bits\n", done.stderr


def test_equal_calls_give_equal_bytes(net: Net, tmp_path: Path) -> None:
    for name in ("a", "b"):
        torch_neuronx.trace(net, torch.rand(2, 4), compiler_workdir=tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["command.txt", "graph.fx.txt", "graph.hlo.pb", "graph.ir.txt", "graph.neff",
                     "log-neuron-cc.txt", "program.txt"]  # fmt: skip
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_targets(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--target"):
        torch_neuronx.trace(net, torch.rand(2, 4), cpu_backend=True)
    traced = torch_neuronx.trace(
        net, torch.rand(2, 4), cpu_backend=True, compiler_args=["--target", "trn1"]
    )
    with pytest.raises(RuntimeError, match=r"status 10\): the model was compiled for trn1"):
        traced(torch.rand(2, 4))
    monkeypatch.setenv("NEURON_RT_ALLOW_LEGACY_NEFF", "1")
    x = torch.rand(2, 4)
    close(traced(x), net(x).detach())


def test_exported_programs(net: Net) -> None:
    x = torch.rand(2, 4)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: batch},))
    many = torch.rand(7, 4)
    close(torch_neuronx.trace(program, x)(many), net(many).detach())
    wide = torch.export.export(
        torch.nn.ReLU(), (x,), dynamic_shapes=({1: torch.export.Dim("n", min=2)},)
    )
    with pytest.raises(torch_neuronx.TraceError, match="NCC_EMOD025"):
        torch_neuronx.trace(wide, x)


def test_what_cannot_be_traced() -> None:
    with pytest.raises(torch_neuronx.TraceError, match="one fixed flow of control"):
        torch_neuronx.trace(lambda x: x if x.sum() > 0 else -x, torch.ones(2))
    with pytest.raises(torch_neuronx.TraceError, match="not TorchScript"):
        torch_neuronx.trace(torch.jit.script(torch.nn.ReLU()), torch.ones(2))


def test_threads(net: Net, traced: torch.jit.ScriptModule) -> None:
    inputs = [torch.rand(2, 4) for _ in range(8)]
    results: dict[int, list[torch.Tensor]] = {}

    def work(number: int) -> None:
        results[number] = [traced(inputs[number]) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, x in enumerate(inputs):
        for result in results[number]:
            close(result, net(x).detach())


def test_a_damaged_model_is_refused(traced: torch.jit.ScriptModule) -> None:
    model = traced.neuron_model
    make = torch.classes.neuron.Model
    manifest, neff, weights = model.manifest(), model.neff(), model.weights()
    broken = neff.clone()
    broken[2000] ^= 1
    cases = [
        ("{", neff, weights, "the manifest is no JSON"),
        (manifest, broken, weights, "NeffError"),
        (manifest, neff, weights[1:], "has 3 weights, not 4"),
        (manifest, neff, [w.double() for w in weights], "float64"),
        (manifest.replace('"weight",0', '"weight",9'), neff, weights, "there is no weight 9"),
        (manifest.replace('[["result",0],null]', '[["result",1],null]'), neff, weights, "result 1"),
        (manifest.replace('[["result",0],null]', '[["result",0],[[9],[9],0]]'), neff, weights,
         "reaches element 72 of 4"),
    ]  # fmt: skip
    for text, content, held, message in cases:
        with pytest.raises(RuntimeError, match=message):
            make(text, content, held, []).load()


def test_a_result_of_an_unknown_class_is_told_with_a_remedy() -> None:
    class Cache:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    with pytest.raises(torch_neuronx.TraceError, match=r"not a known type(?s:.*)use_cache = False"):
        torch_neuronx.trace(lambda x: (x, Cache(x)), torch.rand(2))


#: Where in the caller's memory an input of 4 x 3 lies.
LAYOUTS: dict[str, Any] = {
    "at the beginning": lambda memory: memory[:12].view(4, 3),
    "further on": lambda memory: memory[5:17].view(4, 3),
    "transposed": lambda memory: memory[1:13].view(3, 4).t(),
    "with gaps": lambda memory: memory[:20].view(4, 5)[:, 1:4],
}


class Views(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[1:], x.t(), x[:, 1], x.sum(0)


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("called", LAYOUTS)
@pytest.mark.parametrize("example", LAYOUTS)
def test_views_of_an_input_wherever_it_lies(example: str, called: str, device: str) -> None:
    traced = torch_neuronx.trace(Views(), (LAYOUTS[example](torch.arange(24.0)),))
    x = LAYOUTS[called](torch.arange(100.0, 124.0).to(device))
    for one, other in zip(traced(x), Views()(x), strict=True):
        assert torch.equal(one, other)


def test_views_of_a_dynamic_batch() -> None:
    """Its later parts begin further on in the input."""
    traced = torch_neuronx.trace(lambda x: (x[:, 1:], x * 2), (torch.arange(6.0).view(2, 3),))
    x = torch.arange(15.0).view(5, 3)
    part, twice = torch_neuronx.dynamic_batch(traced)(x)
    assert torch.equal(part, x[:, 1:])
    assert torch.equal(twice, x * 2)
