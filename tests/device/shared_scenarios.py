"""What test_shared_memory.py runs in interpreters of its own: an arena moves once per process."""

import ctypes
import gc
import mmap
import multiprocessing
import os
import resource
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from torch_neuronx import _C, neuron

MIB = 1 << 20
CHUNK = 2 * MIB

sizes = st.one_of(
    st.integers(0, 5000),
    st.integers(0, 300_000),
    st.integers(0, 7 * MIB),
    st.sampled_from([512, 64 << 10, (64 << 10) + 1, CHUNK - 1536, CHUNK, CHUNK + 1]),
)


def file_bytes(fd: int) -> int:
    """Memory that the file holds."""
    return os.fstat(fd).st_blocks * 512


def through_file(x: torch.Tensor) -> bytes:
    """The bytes of a tensor as a second mapping of its core's file shows them."""
    fd, size, base = _C.share_arena(x.device.index)
    with mmap.mmap(fd, size, mmap.MAP_SHARED) as view:
        begin = x.data_ptr() - base
        return view[begin : begin + x.nbytes]


def snapshot(core: int) -> list[dict[str, object]]:
    return [s for s in neuron.memory_snapshot() if s["device"] == core]


def content() -> None:
    """Tensors of many sizes, some freed between them: nothing that can be observed changes."""
    neuron.init()
    cores = count()

    @settings(
        max_examples=40, database=None, suppress_health_check=[HealthCheck.too_slow], deadline=None
    )
    @given(st.lists(st.tuples(sizes, st.booleans()), max_size=12), st.booleans())
    def check(blocks: list[tuple[int, bool]], emptied: bool) -> None:
        core = next(cores)
        assert core < neuron.device_count()
        tensors, expected = [], []
        for size, kept in blocks:
            host = torch.randint(256, (size,), dtype=torch.uint8)
            x = host.to(f"neuron:{core}")
            if kept:
                tensors.append(x)
                expected.append(host)
            del x
        if emptied:
            neuron.empty_cache()
        where = [x.data_ptr() for x in tensors]
        stats = neuron.memory_stats(core)
        blocks_before = snapshot(core)

        fd, size, base = _C.share_arena(core)
        assert (fd, size, base) == _C.share_arena(core)  # once only

        assert [x.data_ptr() for x in tensors] == where
        assert neuron.memory_stats(core) == stats
        assert snapshot(core) == blocks_before
        for x, host in zip(tensors, expected, strict=True):
            assert torch.equal(x.cpu(), host)
            assert through_file(x) == host.numpy().tobytes() if x.nbytes else True
            x.add_(1)
            assert torch.equal(x.cpu(), host + 1)
            del x
        # A chunk's memory is there as soon as the chunk is reserved, and not before.
        assert file_bytes(fd) <= neuron.memory_reserved(core)
        for kept_size, _ in blocks:
            y = torch.full((kept_size,), 7, dtype=torch.uint8, device=f"neuron:{core}")
            assert y.cpu().eq(7).all()
            tensors.append(y)
            del y
        tensors.clear()
        neuron.empty_cache()
        assert neuron.memory_reserved(core) == 0
        assert file_bytes(fd) == 0

    check()


PEER = """
import mmap, os, stat, sys
path, size, offset, bytes_ = sys.argv[1], *map(int, sys.argv[2:])
with open(path, "r+b") as file:
    assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
    view = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED)
assert view[offset:offset + bytes_] == bytes(range(256)) * (bytes_ // 256)
view[offset:offset + bytes_] = bytes(range(255, -1, -1)) * (bytes_ // 256)
"""


def peer() -> None:
    """Another process reads a tensor and writes it, before and after it was allocated anew."""
    count_ = 3 * MIB
    early = torch.arange(count_).to(torch.uint8).to("neuron")
    fd, size, base = _C.share_arena(0)
    late = torch.arange(count_).to(torch.uint8).to("neuron")
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    assert os.get_inheritable(fd) is False
    with pytest.raises(OSError, match="not permitted"):  # sealed: nobody can shrink it
        os.ftruncate(fd, CHUNK)
    for x in (early, late):
        arguments = [f"/proc/{os.getpid()}/fd/{fd}", size, x.data_ptr() - base, x.nbytes]
        subprocess.run([sys.executable, "-S", "-c", PEER, *map(str, arguments)], check=True)
        assert torch.equal(x.cpu(), 255 - torch.arange(count_).to(torch.uint8))


def resident() -> int:
    """MiB of this process's memory, shared included."""
    with Path("/proc/self/status").open() as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) >> 10


def returned() -> None:
    """empty_cache() gives the pages of a shared arena back, and so does running out of memory."""
    torch.ones(1, device="neuron")
    fd, _, _ = _C.share_arena(0)
    before = resident()
    x = torch.ones(256 * MIB, dtype=torch.uint8, device="neuron")
    assert resident() - before >= 240
    assert file_bytes(fd) >= 256 * MIB
    del x
    neuron.empty_cache()
    assert resident() - before <= 16
    assert file_bytes(fd) <= 8 * MIB

    capacity = neuron.get_device_properties(0).total_memory
    kept = [torch.ones(4 * MIB, dtype=torch.uint8, device="neuron") for _ in range(20)]
    del kept[::2]
    assert file_bytes(fd) >= 80 * MIB
    with pytest.raises(torch.OutOfMemoryError, match="NEURON out of memory"):
        torch.empty(capacity - 16 * MIB, dtype=torch.uint8, device="neuron")
    assert 40 * MIB <= file_bytes(fd) <= 70 * MIB  # what was free went before it gave up
    assert all(x.cpu().eq(1).all() for x in kept)


def unnoticed() -> None:
    """Deferred programs, compiled programs, packed weights and pinned memory across the move."""
    torch.manual_seed(0)

    @torch.compile(backend="neuron", fullgraph=True)
    def compiled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w)

    results: dict[str, list[torch.Tensor]] = {}
    for core in (0, 1):  # core 1 moves in the middle
        torch.manual_seed(1)
        weights = [torch.randn(n, 257).to(f"neuron:{core}").requires_grad_() for n in (3, 64, 500)]
        optimizer = torch.optim.AdamW(weights, lr=0.1, foreach=True)
        layer = torch.nn.Linear(257, 257).to(f"neuron:{core}")
        pinned = torch.randn(64, 257).pin_memory()
        out: list[torch.Tensor] = results.setdefault(str(core), [])
        for step in range(4):
            x = pinned.to(f"neuron:{core}", non_blocking=True)
            loss = sum((layer(x) @ w.t()).square().mean() for w in weights)
            loss.backward()
            optimizer.step()  # deferred
            if core == 1 and step == 1:
                _C.share_arena(1)
            optimizer.zero_grad()
            out += [loss.detach().cpu(), compiled(x, weights[1].detach().t()).cpu()]
        out += [w.detach().cpu() for w in weights]
        assert pinned.is_pinned()
    for a, b in zip(results["0"], results["1"], strict=True):
        assert torch.equal(a, b)


class Holding(Dataset[int]):
    """Carries a tensor of the device that its workers don't look at."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def forked() -> None:
    """A child by fork can read what it inherited, and change nothing of its parent's."""
    x = torch.arange(MIB, dtype=torch.int32).to("neuron")
    _C.share_arena(0)
    late = torch.arange(MIB, dtype=torch.int32).to("neuron")

    def child(pipe: multiprocessing.connection.Connection) -> None:
        words = [ctypes.c_int32.from_address(t.data_ptr() + 4 * 1000) for t in (x, late)]
        seen = [word.value for word in words]
        for word in words:
            word.value = -1
        try:
            x.add_(1)
        except RuntimeError as error:
            pipe.send((seen, [word.value for word in words], str(error)))

    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    process = fork.Process(target=child, args=(there,))
    process.start()
    assert here.poll(30)
    seen, written, error = here.recv()
    process.join()
    assert seen == [1000, 1000]
    assert written == [-1, -1]
    assert "you must use the 'spawn' start method" in error
    expected = torch.arange(MIB, dtype=torch.int32)
    assert torch.equal(x.cpu(), expected)
    assert torch.equal(late.cpu(), expected)

    loader = DataLoader(Holding(x), batch_size=4, num_workers=2, multiprocessing_context="fork")
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert torch.equal(x.cpu(), expected)


def threads() -> None:
    """Others allocate and free while the arena moves."""
    kept = [
        torch.full((n,), n % 251, dtype=torch.uint8, device="neuron") for n in range(1, MIB, 9973)
    ]
    stop = threading.Event()
    failures: list[RuntimeError] = []

    def churn(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            while not stop.is_set():
                n = int(torch.randint(1, 4 * MIB, (), generator=generator))
                torch.empty(n, dtype=torch.uint8, device="neuron")
        except RuntimeError as error:
            failures.append(error)

    workers = [threading.Thread(target=churn, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    _C.share_arena(0)
    stop.set()
    for worker in workers:
        worker.join()
    assert failures == []
    for x in kept:
        assert x.cpu().eq(x.numel() % 251).all()
    del kept, x
    gc.collect()
    assert neuron.memory_allocated(0) == 0


def file_limit() -> None:
    """`ulimit -f` would end the process by a signal; it is an error instead, and not for ever."""
    x = torch.arange(1000.0).to("neuron")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, hard))
    with pytest.raises(RuntimeError, match=r"memory of neuron:0.*files are limited to 1073741824"):
        _C.share_arena(0)
    assert x.sum().item() == 499500
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    fd, _, _ = _C.share_arena(0)
    assert file_bytes(fd) > 0
    assert x.sum().item() == 499500


def refuse_mappings_from(offset: int) -> None:
    """Make the kernel refuse every mmap of a file from this offset on (x86-64; by seccomp)."""
    # struct seccomp_data: number at 0, arguments from 16; the sixth of mmap (9) is the offset.
    deny = 0x00050000 | 12  # SECCOMP_RET_ERRNO | ENOMEM
    low, high = 16 + 5 * 8, 16 + 5 * 8 + 4
    assert offset < 1 << 32
    program = b"".join(
        struct.pack("HBBI", *op)
        for op in (
            (0x20, 0, 0, 0),  # load number
            (0x15, 0, 5, 9),  # not mmap: allow
            (0x20, 0, 0, high),
            (0x15, 0, 2, 0),  # beyond 4 GiB: deny
            (0x20, 0, 0, low),
            (0x35, 0, 1, offset),  # below: allow
            (0x06, 0, 0, deny),
            (0x06, 0, 0, 0x7FFF0000),
        )
    )
    buffer = ctypes.create_string_buffer(program)
    filter_ = ctypes.create_string_buffer(
        struct.pack("H6xQ", len(program) // 8, ctypes.addressof(buffer))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(filter_), 0, 0) == 0, ctypes.get_errno()


def failing_midway() -> None:
    """What was moved stays in the file, the rest is private, and nothing is lost."""
    tensors = [torch.full((3 * MIB,), i, dtype=torch.uint8, device="neuron") for i in range(20)]
    hole = tensors.pop(10)
    del hole
    neuron.empty_cache()
    refuse_mappings_from(30 * MIB)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf"after {30 * MIB} of \d+ bytes: Cannot allocate"):
            _C.share_arena(0)
    values = [*range(10), *range(11, 20)]

    def intact() -> None:
        for i, x in zip(values, tensors, strict=True):
            assert x.cpu().eq(i).all()

    intact()
    more = [torch.full((3 * MIB,), 99, dtype=torch.uint8, device="neuron") for _ in range(10)]
    assert all(x.cpu().eq(99).all() for x in more)
    intact()
    del more
    held = resident()
    neuron.empty_cache()
    assert held - resident() >= 24
    intact()
    pid = os.fork()
    if pid == 0:
        for x in tensors:
            ctypes.memset(x.data_ptr(), 77, x.nbytes)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    intact()
    tensors.clear()
    neuron.empty_cache()
    assert neuron.memory_reserved(0) == 0


SCENARIOS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (content, peer, returned, unnoticed, forked, threads, file_limit, failing_midway)
}
