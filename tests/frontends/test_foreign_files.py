"""Files that are given to the compiler by mistake: the remedy is that of the file."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from neuronxcc.cli import main
from neuronxcc.frontends.hlo.foreign import REMEDY
from tests.frontends.modules import Computation, module


def _saved(what: object) -> bytes:
    file = io.BytesIO()
    torch.save(what, file)
    return file.getvalue()


def _script() -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.relu, torch.ones(2)), file)
    return file.getvalue()


def _exported() -> bytes:
    file = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), file)
    return file.getvalue()


def _archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/readme.txt", "no model")
    return file.getvalue()


def _neff() -> bytes:
    main_computation = Computation("main", 1)
    main_computation.add("negate", "f32[4]", main_computation.parameter("f32[4]"))
    Path("right.pb").write_bytes(module(main_computation))
    assert main(["compile", "right.pb", "--framework=XLA", "--output=right.neff"]) == 0
    return Path("right.neff").read_bytes()


FOREIGN: dict[str, tuple[Callable[[], bytes], str]] = {
    "text of HLO": (
        lambda: b"\nHloModule m\n\nENTRY main {\n  ROOT a = f32[4] parameter(0)\n}\n",
        (
            "it is HLO as text, which is for reading only: dump the module with "
            "--xla_dump_hlo_as_proto, or as StableHLO (lowered.as_text() in JAX)"
        ),
    ),
    "NEFF": (_neff, "it is a NEFF, which is compiled already: nrtpy runs it"),
    "weights": (
        lambda: _saved(torch.nn.Linear(2, 2).state_dict()),
        (
            "it is what torch.save writes, weights without a program: load them into the model, "
            "and compile that with torch_neuronx.trace, or torch.compile(backend='neuron')"
        ),
    ),
    "TorchScript": (
        _script,
        (
            "it is a module of TorchScript, whose operators the compiler doesn't know: give the "
            "model and an example input to torch_neuronx.trace"
        ),
    ),
    "exported program": (
        _exported,
        (
            "it is an exported program of PyTorch: load it with torch.export.load, and "
            "compile its module with torch_neuronx.trace, or torch.compile(backend='neuron')"
        ),
    ),
    "another archive": (_archive, REMEDY),
    "the end of an archive": (lambda: _archive()[-30:], REMEDY),
    "a script": (lambda: b"import torch\n", REMEDY),
    "nothing": (lambda: b"", REMEDY),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("kind", FOREIGN)
def test_the_remedy_is_that_of_the_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, remedy = FOREIGN[kind]
    content = make()
    Path("given").write_bytes(content)
    capsys.readouterr()
    assert main(["compile", "given", "--framework=XLA", "--output=out.neff"]) == 1
    said = capsys.readouterr().err
    assert f"[NCC_EHLO001] the input ({len(content)} bytes) is no HloModuleProto" in said
    assert f"\n  remedy: {remedy}\n" in said
    assert not Path("out.neff").exists()
