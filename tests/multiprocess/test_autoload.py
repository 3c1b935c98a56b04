"""Loading the device: by PyTorch, by name, turned off, and when it fails. Each in a new process."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(
    code: str, *, warnings: str = "error", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that inherits no setting of the machine."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NEURON_", "TORCH_", "LOCAL_RANK"))
    }
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", code],
        env=kept | {"OMP_NUM_THREADS": "1"} | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def output(code: str, **variables: str) -> str:
    done = python(code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_entry_point() -> None:
    (entry,) = (each for each in entry_points(group="torch.backends") if each.name == "neuron")
    assert entry.value == "torch_neuronx:_autoload"


@pytest.mark.slow
def test_import_torch_is_enough() -> None:
    code = "import torch; print(torch.ones(2, device='neuron').device, torch.neuron.device_count())"
    assert output(code) == "neuron:0 4"


@pytest.mark.slow
@pytest.mark.parametrize("order", ["torch, torch_neuronx", "torch_neuronx, torch"])
def test_both_orders_of_import_give_one_module(order: str) -> None:
    code = f"import {order}; print(torch_neuronx.neuron is torch.neuron)"
    assert output(code) == "True"


@pytest.mark.slow
def test_autoload_turned_off() -> None:
    code = """
import torch
print(hasattr(torch, "neuron"))
import torch_neuronx
print(torch.neuron.is_available())
"""
    assert output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split() == ["False", "True"]


@pytest.mark.slow
def test_importing_neither_initialises_nor_starts_threads() -> None:
    code = """
import threading, torch
torch.manual_seed(0)
print(torch.neuron.is_initialized(), torch.neuron._initialized, threading.active_count())
"""
    assert output(code) == "False False 1"


@pytest.mark.slow
def test_submodules_are_the_same_under_both_names() -> None:
    code = """
import torch.neuron.memory, torch_neuronx.neuron.memory
print(torch.neuron.memory is torch_neuronx.neuron.memory)
"""
    assert output(code) == "True"


BAD = {"NEURON_PLATFORM_TARGET_OVERRIDE": "h100"}
REASON = "MachineConfigError: NEURON_PLATFORM_TARGET_OVERRIDE='h100' is not valid"


@pytest.mark.slow
def test_failed_autoload_leaves_torch_alone() -> None:
    code = """
import torch
torch.manual_seed(0)
print(torch.ones(2).sum().item())
model = torch.nn.Linear(2, 2)
model(torch.ones(1, 2)).sum().backward()
torch.optim.AdamW(model.parameters()).step()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))
print(len(list(loader)))
"""
    done = python(code, warnings="default", **BAD)  # the optimizer asks for an accelerator
    assert done.stdout.split() == ["2.0", "4"], done.stderr


@pytest.mark.slow
def test_failed_autoload_warns_once_when_asked_for_the_device() -> None:
    code = """
import torch
neuron = torch.neuron
for _ in range(2):
    print(neuron.is_available(), neuron.device_count(), torch.accelerator.is_available())
"""
    done = python(code, warnings="always", **BAD)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False 0 False"] * 2
    assert done.stderr.count(REASON) == 1
    assert "RuntimeWarning" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("use", ["torch.ones(2, device='neuron')", "torch.neuron.init()"])
def test_use_after_a_failed_autoload_names_the_reason(use: str) -> None:
    code = f"""
import torch
try:
    {use}
except RuntimeError as error:
    print(error)
"""
    prefix = "the neuron device is not available in this process: "
    assert output(code, **BAD).startswith(prefix + REASON)


@pytest.mark.slow
def test_failure_after_the_core_was_loaded_leaves_no_devices() -> None:
    code = """
import torch
print(torch.neuron.device_count(), torch.ones(2).sum().item())
try:
    torch.ones(2, device="neuron")
except RuntimeError as error:
    print(type(error).__name__)
"""
    done = python(code, warnings="default", TORCH_NEURONX_PORTABILITY="sloppy")
    assert done.stdout.split() == ["0", "2.0", "RuntimeError"], done.stderr
    assert "TORCH_NEURONX_PORTABILITY" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import torch\n"])
def test_import_by_name_raises_the_failure_each_time(before: str) -> None:
    code = (
        before
        + """
for _ in range(2):
    try:
        import torch_neuronx
    except RuntimeError as error:
        print(type(error).__name__, error)
"""
    )
    lines = output(code, **BAD).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(
            f"NeuronUnavailableError the neuron device cannot be set up: {REASON}"
        )


@pytest.mark.slow
def test_what_registration_reads_is_read_before_pytorch_is_changed() -> None:
    """A value that is refused later would leave half a device, and hide its own message."""
    code = """
import sys
from neuronxcc.environment.variable import Variable

plain, early, late = Variable.get, set(), set()

def get(self, *arguments, **named):
    torch = sys.modules.get("torch")
    known = getattr(torch, "_C", None)
    changed = known is not None and known._get_privateuse1_backend_name() == "neuron"
    (late if changed else early).add(self.name)
    return plain(self, *arguments, **named)

Variable.get = get
import torch
print(len(early), sorted(late - early))
"""
    text = output(
        code,
        NEURON_RT_INSPECT_ENABLE="1",
        TORCH_NEURONX_FAULTS="slow_rank:seconds=0",
        TORCH_NEURONX_ENABLE_NKI_SDPA="1",
    )
    count, late = text.split(maxsplit=1)
    assert int(count) > 10
    assert late == "[]"


@pytest.mark.every(5, "slow")
@pytest.mark.parametrize(
    ("variable", "others"),
    [
        ("TORCH_NEURONX_EAGER_MODE", {}),
        ("TORCH_NEURONX_ENABLE_STACK_TRACE", {}),
        ("TORCH_NEURONX_CLOCK", {}),
        ("NEURON_EXTRACT_GRAPHS_ONLY", {}),
        ("TORCH_NEURONX_FAULTS", {}),
        ("NEURON_RT_INSPECT_EVENT_FILTER_NC", {"NEURON_RT_INSPECT_ENABLE": "1"}),
    ],
)
def test_a_refused_value_is_named_each_time(variable: str, others: dict[str, str]) -> None:
    code = """
import torch
print(torch.neuron.device_count())
for _ in range(2):
    try:
        import torch_neuronx
    except RuntimeError as error:
        print(str(error).replace("\\n", " "))
"""
    done = python(code, warnings="ignore", **others, **{variable: "wrong?"})
    assert done.returncode == 0, done.stderr
    devices, first, second = done.stdout.splitlines()
    assert devices == "0"
    assert first == second
    assert first.startswith("the neuron device cannot be set up: ")
    assert "wrong?" in first
    assert variable in first


@pytest.mark.slow
def test_another_backend_in_the_same_process() -> None:
    code = """
import torch
torch.utils.rename_privateuse1_backend("other")
try:
    import torch_neuronx
except RuntimeError as error:
    print(error)
print(torch.ones(2).sum().item())
"""
    text = output(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "Current backend: other" in text
    assert text.endswith("2.0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "0"),
        ({"LOCAL_RANK": "2"}, "2"),
        ({"LOCAL_RANK": "7"}, "0"),
        ({"LOCAL_RANK": "1", "NEURON_RT_VISIBLE_CORES": "1"}, "0"),
    ],
)
def test_launcher_chooses_the_device_of_all_threads(
    variables: dict[str, str], expected: str
) -> None:
    code = """
import threading, torch
print(torch.neuron.current_device(), torch.accelerator.current_device_index())
print(torch.ones(1, device="neuron").get_device())
thread = threading.Thread(target=lambda: print(torch.neuron.current_device()))
thread.start()
thread.join()
"""
    assert output(code, **variables).split() == [expected] * 4


@pytest.mark.slow
def test_visible_cores_are_numbered_from_zero() -> None:
    code = """
import torch
print([torch.neuron.get_device_properties(i).logical_core for i in range(2)])
print(torch.neuron.get_device_properties(1).chip, torch.neuron.device_count())
"""
    assert output(code, NEURON_RT_VISIBLE_CORES="6-7").splitlines() == ["[6, 7]", "1 2"]


@pytest.mark.slow
def test_forked_child_of_a_process_that_used_the_device() -> None:
    code = """
import os, sys, torch
torch.ones(1, device="neuron")
if os.fork() == 0:
    torch.manual_seed(1)
    print(torch.neuron._is_in_bad_fork(), torch.neuron.is_initialized())
    try:
        torch.ones(1, device="neuron")
    except RuntimeError as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
    state, error = output(code).splitlines()
    assert state == "True False"
    assert error == (
        "Cannot re-initialize neuron in forked subprocess. To use neuron with multiprocessing, "
        "you must use the 'spawn' start method"
    )


@pytest.mark.slow
def test_forked_child_of_a_process_that_only_imported() -> None:
    code = """
import os, sys, torch
torch.manual_seed(0)
if os.fork() == 0:
    print(torch.ones(2, device="neuron").sum().item())
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""
    assert output(code) == "2.0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("transformers.utils.import_utils", "is_torch_neuron_available"),
        ("accelerate.utils.imports", "is_neuron_available"),
    ],
)
def test_libraries_find_the_device(module: str, function: str) -> None:
    code = f"from {module} import {function} as found; print(found(check_device=True))"
    done = python(code, warnings="default")  # the libraries' own warnings are not ours to fail on
    assert done.stdout.strip() == "True", done.stderr
