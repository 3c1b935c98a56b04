"""The functions of torch.neuron that PyTorch and its users call by name."""

import importlib
import pkgutil
import re
import threading
import warnings
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import torch_neuronx
from torch_neuronx import neuron

_GRAPHS = "there are no graphs of launches: calls run when they are made (see torch.compile)"
_ALLOCATOR = "the allocator of the emulated HBM is part of the device"
_SENSOR = "a reading of hardware, and there is none"
_LIBRARY = "a library or tool of NVIDIA's"
_BUILD = "says how PyTorch's CUDA part was built"

#: Names of torch.cuda that torch.neuron does not have.
NOT_CUDAS = {
    **dict.fromkeys(("CUDAGraph", "graph", "graphs", "graph_pool_handle"), _GRAPHS),
    "make_graphed_callables": _GRAPHS,
    # Since PyTorch 2.14.
    **dict.fromkeys(("export_dot", "export_graph_data", "graph_annotations"), _GRAPHS),
    **dict.fromkeys(("CUDAPluggableAllocator", "MemPool", "use_mem_pool"), _ALLOCATOR),
    **dict.fromkeys(("caching_allocator_alloc", "caching_allocator_delete"), _ALLOCATOR),
    **dict.fromkeys(("caching_allocator_disabled", "caching_allocator_enable"), _ALLOCATOR),
    **dict.fromkeys(("change_current_allocator", "get_allocator_backend"), _ALLOCATOR),
    **dict.fromkeys(("clock_rate", "power_draw", "temperature"), _SENSOR),
    "memory_usage": "how long memory is in use is not counted",
    **dict.fromkeys(("CudaError", "DeferredCudaCallError", "check_error", "cudaStatus"), _LIBRARY),
    **dict.fromkeys(("cudart", "current_blas_handle", "current_solver_handle"), _LIBRARY),
    **dict.fromkeys(("ExternalStream", "get_stream_from_external", "gds"), _LIBRARY),
    "DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION": _LIBRARY,
    **dict.fromkeys(("GreenContext", "green_contexts", "jiterator", "nccl"), _LIBRARY),
    **dict.fromkeys(("comm", "profiler", "tunable", "ipc_collect"), _LIBRARY),
    **dict.fromkeys(("get_arch_list", "get_gencode_flags", "has_half", "has_magma"), _BUILD),
    **dict.fromkeys(("DEVICE_REQUIREMENT", "PYTORCH_RELEASES_CODE_CC"), _BUILD),
    "is_tf32_supported": "float32 products are those of PyTorch; there is no shorter mode",
    "host_memory_stats": "pinned host memory is not counted",
    "host_memory_stats_as_nested_dict": "pinned host memory is not counted",
    "reset_accumulated_host_memory_stats": "pinned host memory is not counted",
    "reset_peak_host_memory_stats": "pinned host memory is not counted",
    **dict.fromkeys(("Callable", "Device", "NewType", "Optional", "cast"), "of its own imports"),
    **dict.fromkeys(("classproperty", "lru_cache"), "of its own imports"),
    **dict.fromkeys(("Enum", "auto", "cache"), "of its own imports"),  # since PyTorch 2.15
}

CALLS_WITH_A_DEVICE = [
    neuron.get_device_properties,
    neuron.get_device_name,
    neuron.get_device_capability,
    neuron.set_device,
    neuron.synchronize,
    neuron.current_stream,
    neuron.default_stream,
    neuron.Stream,
    neuron.get_rng_state,
    neuron.memory_stats,
    neuron.memory_allocated,
    neuron.mem_get_info,
    neuron.memory_categories,
    neuron.memory_summary,
    neuron.list_gpu_processes,
    neuron.utilization,
    neuron.reset_peak_memory_stats,
]


def test_names_of_the_guides_in_torch_neuronx() -> None:
    stream = torch_neuronx.Stream(torch.device("neuron", 1))
    with torch_neuronx.stream(stream):
        assert neuron.current_stream(1) == stream
    torch_neuronx.synchronize()
    assert torch_neuronx.utils.get_platform_target() == "trn2"


@pytest.mark.parametrize("function", CALLS_WITH_A_DEVICE, ids=lambda f: f.__name__)
def test_any_spelling_of_a_device(function: Callable[[object], object]) -> None:
    for device in (
        1,
        "neuron:1",
        torch.device("neuron", 1),
        "neuron",
        "privateuseone:1",
        neuron.device(1),
    ):
        function(device)


@pytest.mark.parametrize("function", CALLS_WITH_A_DEVICE, ids=lambda f: f.__name__)
def test_a_device_that_does_not_exist(function: Callable[[object], object]) -> None:
    text = "The device index is out of range. It must be in [0, 4), but got 9."
    with pytest.raises(RuntimeError, match=re.escape(text)):
        function(9)


@pytest.mark.parametrize("function", CALLS_WITH_A_DEVICE, ids=lambda f: f.__name__)
def test_what_is_no_neuron_device(function: Callable[[object], object]) -> None:
    with pytest.raises(ValueError, match="expected a neuron device, but got: cpu"):
        function("cpu")
    with pytest.raises(TypeError, match="expected a device, a string, an index or None"):
        function(1.5)


def test_index_of_a_device() -> None:
    index = neuron._utils._get_device_index
    assert index("neuron:3") == 3
    assert index("cpu", allow_cpu=True) == -1
    assert index(None, optional=True) == neuron.current_device()
    with pytest.raises(ValueError, match="expected a neuron device with an index"):
        index("neuron")


def test_negative_and_missing_devices_select_nothing() -> None:
    neuron.set_device(2)
    neuron.set_device(-1)
    for device in (None, -1):
        with neuron.device(device):
            assert neuron.current_device() == 2
    assert neuron._exchange_device(-1) == -1
    assert neuron._maybe_exchange_device(-1) == -1
    assert neuron._exchange_device(3) == 2
    assert neuron._maybe_exchange_device(2) == 3


def test_device_of() -> None:
    neuron.set_device(0)
    with neuron.device_of(torch.ones(1, device="neuron:3")):
        assert neuron.current_device() == 3
    with neuron.device_of(torch.ones(1)):
        assert neuron.current_device() == 0


def test_contexts_nest_and_may_be_used_again() -> None:
    neuron.set_device(0)
    context = neuron.device(1)
    for _ in range(2):
        with context, neuron.device(2):
            assert neuron.current_device() == 2
        assert neuron.current_device() == 0


def test_deferred_calls_run_at_once() -> None:
    ran = []
    neuron._lazy_call(lambda: ran.append(1), seed_all=True)
    assert ran == [1]


def test_initialisation() -> None:
    neuron.init()
    neuron._lazy_init()
    assert neuron.is_initialized()
    assert neuron._initialized
    assert not neuron._is_in_bad_fork()


def test_peer_access() -> None:
    assert neuron.can_device_access_peer(0, "neuron:3")
    with pytest.raises(RuntimeError, match="out of range"):
        neuron.can_device_access_peer(0, 4)


def test_stream_constructors() -> None:
    assert neuron.Stream(2, -1).device == torch.device("neuron:2")
    stream = neuron.Stream(device="neuron:1", priority=0)
    same = neuron.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )
    assert stream == same
    assert hash(stream) == hash(same)
    assert repr(stream) == f"torch.neuron.Stream(device=neuron:1, stream_id={stream.stream_id})"
    assert isinstance(neuron.current_stream(), neuron.Stream)


def test_streams_nest() -> None:
    outer, inner = neuron.Stream(0), neuron.Stream(0)
    neuron.set_device(1)
    default = neuron.current_stream(0)
    with neuron.stream(outer):
        with neuron.stream(inner), neuron.stream(None):
            assert neuron.current_stream() == inner
        assert neuron.current_stream() == outer
        assert neuron.current_device() == 0
    assert neuron.current_stream(0) == default
    assert neuron.current_device() == 1
    neuron.set_stream(None)
    assert neuron.current_stream(0) == default


def test_events_of_every_origin_work_together() -> None:
    stream = neuron.Stream()
    first = neuron.Event(enable_timing=True)
    last = torch.Event("neuron", enable_timing=True)
    first.record()
    stream.wait_event(first)
    last.record(stream)
    assert isinstance(first, neuron.Event)
    assert isinstance(last, neuron.Event)
    assert not isinstance(stream, neuron.Event)
    last.synchronize()
    assert first.elapsed_time(last) >= 0
    assert stream.record_event().query()
    assert stream.record_event(first) is first


def test_seeds() -> None:
    neuron.set_device(1)
    neuron.manual_seed(11)
    assert neuron.initial_seed() == 11
    neuron.manual_seed_all(12)
    assert [generator.initial_seed() for generator in neuron.default_generators] == [12] * 4
    neuron.seed()
    assert neuron.initial_seed() != 12
    neuron.seed_all()
    assert len({generator.initial_seed() for generator in neuron.default_generators}) == 1
    states = neuron.get_rng_state_all()
    torch.rand(5, device="neuron:1")
    neuron.set_rng_state_all(states)
    assert all(map(torch.equal, states, neuron.get_rng_state_all()))


def test_memory_statistics_as_a_tree() -> None:
    tensor = torch.ones(1000, device="neuron:1")
    flat = neuron.memory_stats(1)
    tree = neuron.memory_stats_as_nested_dict(1)
    assert tree["allocated_bytes"]["all"]["current"] == flat["allocated_bytes.all.current"]
    assert tree["num_ooms"] == flat["num_ooms"]
    assert neuron.memory_categories(tensor.device)["Tensors"] >= 4000


def test_memory_summary() -> None:
    tensor = torch.ones(3 << 18, device="neuron:2")  # 3 MiB
    full = neuron.memory_summary(tensor.device)
    short = neuron.memory_summary(tensor.device, abbreviated=True)
    assert full.splitlines()[1].startswith("neuron:2 memory, ")
    assert "of 24.00 GiB HBM reserved" in full
    assert re.search(r"^  Tensors +3\.\d\d MiB$", full, re.MULTILINE)
    assert "Tensors" not in short
    assert re.search(r"^Allocated memory +3\.\d\d MiB", short, re.MULTILINE)


def test_autocast_state_under_older_names() -> None:
    assert not neuron.is_autocast_enabled()
    neuron.set_autocast_enabled(True)
    try:
        assert torch.is_autocast_enabled("neuron")
        assert neuron.is_autocast_enabled()
    finally:
        neuron.set_autocast_enabled(False)
    before = neuron.get_autocast_dtype()
    neuron.set_autocast_dtype(torch.float16)
    try:
        assert torch.get_autocast_dtype("neuron") == torch.float16
    finally:
        neuron.set_autocast_dtype(before)


def test_typed_storages() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch deprecates them
        storage = torch.ones(3, device="neuron:1").storage()
        assert storage.type() == "torch.neuron.FloatStorage"
        assert isinstance(storage, neuron.FloatStorage)
        assert not isinstance(torch.ones(3).storage(), neuron.FloatStorage)
        assert neuron.LongStorage([1, 2]).tolist() == [1, 2]
        with pytest.raises(RuntimeError, match="from_buffer: not available"):
            neuron.FloatStorage.from_buffer(b"")


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match=r"module 'torch\.neuron' has no attribute 'cudart'"):
        neuron.cudart  # noqa: B018


def _names(module: ModuleType) -> list[str]:
    """Public names of a module, without other modules that it imports."""
    return [
        name
        for name in dir(module)
        if not name.startswith("_")
        and not (
            isinstance(value := getattr(module, name), ModuleType)
            and not value.__name__.startswith("torch.cuda")
        )
    ]


@pytest.mark.parametrize("name", _names(torch.cuda))
def test_names_of_cuda(name: str) -> None:
    """A name is there, or has a reason not to be: never both."""
    assert hasattr(neuron, name) != (name in NOT_CUDAS)


@pytest.mark.parametrize(
    "module", [m.name for m in pkgutil.iter_modules(torch.cuda.__path__) if m.name[0] != "_"]
)
def test_submodules_of_cuda(module: str) -> None:
    if module in NOT_CUDAS:
        return
    ours = importlib.import_module(f"torch.neuron.{module}")
    theirs = importlib.import_module(f"torch.cuda.{module}")
    own = [name for name in getattr(theirs, "__all__", ()) if name not in NOT_CUDAS]
    assert [name for name in own if not hasattr(ours, name)] == []


def test_errors_of_the_device_are_pytorchs() -> None:
    assert neuron.OutOfMemoryError is torch.OutOfMemoryError
    with pytest.raises(neuron.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="neuron")


@pytest.mark.parametrize(
    "name", [n for n in dir(torch.cuda) if n.endswith("Tensor")], ids=lambda n: n
)
def test_tensor_types(name: str) -> None:
    kind, dtype = getattr(neuron, name), getattr(torch.cuda, name).dtype
    with neuron.device(1):
        made = kind(2, 3)
    assert (made.device, made.dtype) == (torch.device("neuron:1"), dtype)
    assert made.shape == (2, 3)
    assert made.type() == f"torch.neuron.{name}"
    assert kind([1, 0]).tolist() == [1, 0]
    assert isinstance(made, kind)
    assert not isinstance(made.cpu(), kind)
    sparse = torch.eye(2, dtype=torch.float32).to(dtype).to("neuron").to_sparse()
    assert not isinstance(sparse, kind)
    assert isinstance(sparse, getattr(neuron.sparse, name))
    others = [n for n in dir(torch.cuda) if n.endswith("Tensor") and n != name]
    assert not any(isinstance(made, getattr(neuron, other)) for other in others)
    assert made.float().type(kind).dtype == dtype


def test_amp_under_the_names_of_cuda() -> None:
    assert not neuron.amp.amp_definitely_not_available()
    scaler = neuron.amp.GradScaler(init_scale=8.0)
    assert scaler.scale(torch.ones((), device="neuron")) == 8
    x = torch.ones(2, 2, device="neuron")
    with neuron.amp.autocast(dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
        with neuron.amp.autocast(enabled=False):
            assert (x @ x).dtype == torch.float32

    class Twice(torch.autograd.Function):
        @staticmethod
        @neuron.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("neuron")
            return x * 2

        @staticmethod
        @neuron.amp.custom_bwd
        def backward(_ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    leaf = torch.ones(2, device="neuron", dtype=torch.bfloat16, requires_grad=True)
    with neuron.amp.autocast():
        result = Twice.apply(leaf)  # type: ignore[no-untyped-call]
    assert result.dtype == torch.float32
    result.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 2]


def test_ranges_in_a_profile() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        assert [neuron.nvtx.range_push("outer"), neuron.nvtx.range_push("inner")] == [0, 1]
        assert [neuron.nvtx.range_pop(), neuron.nvtx.range_pop()] == [1, 0]
        first, second = neuron.nvtx.range_start("first"), neuron.nvtx.range_start("second")
        neuron.nvtx.range_end(first)
        neuron.nvtx.range_end(second)
        neuron.nvtx.mark("point")
        with neuron.nvtx.range("step {}", 3):
            torch.ones(2, device="neuron")
    names = {event.name for event in recorded.events() or ()}
    assert {"outer", "inner", "first", "second", "point", "step 3"} <= names


def test_ranges_that_are_not_open() -> None:
    with pytest.raises(RuntimeError, match="range_pop: this thread has no open range"):
        neuron.nvtx.range_pop()
    handle = neuron.nvtx.range_start("here")
    neuron.nvtx.range_end(handle)
    with pytest.raises(RuntimeError, match=f"range_end: {handle} is no open range of this thread"):
        neuron.nvtx.range_end(handle)


def test_every_public_name_exists() -> None:
    missing = [name for name in neuron.__all__ if not hasattr(neuron, name)]
    assert not missing


def test_threads_start_on_the_default_device() -> None:
    neuron.set_device(2)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(neuron.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]


def test_torchrun_counts_the_devices() -> None:
    from torch.distributed.run import determine_local_world_size  # noqa: PLC0415

    assert determine_local_world_size("neuron") == 4


def test_default_tensor_type_is_refused_by_pytorch() -> None:
    """docs/device.md says what to use instead; should PyTorch take the type one day, both go."""
    with pytest.raises(TypeError, match="invalid type object"):
        torch.set_default_tensor_type("torch.neuron.FloatTensor")
    torch.set_default_device("neuron")
    try:
        made = [torch.zeros(2), torch.nn.Linear(2, 2).weight, neuron.FloatTensor([1.0])]
        assert torch.Tensor([1.0]).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert {x.device.type for x in made} == {"neuron"}


@pytest.mark.skipif(hasattr(torch._C, "_scatter"), reason="a CUDA build's are NCCL's")
@pytest.mark.parametrize("cores", [[0], [0, 1]])
def test_data_parallel_is_refused_by_pytorch(cores: list[int]) -> None:
    """docs/device.md says what to use instead; should PyTorch have the functions, both go."""
    model = torch.nn.DataParallel(torch.nn.Linear(4, 2).to("neuron"), device_ids=cores)
    with pytest.raises(AttributeError, match=r"module 'torch\._C' has no attribute '_scatter'"):
        model(torch.ones(4, 4, device="neuron"))
