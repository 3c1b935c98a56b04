"""The compile cache: what was compiled once is loaded, by other processes and other machines too.

    cache = open_cache(options.wrapper)
    compiled = cache.compile(make_key(text, options), lambda: compile_graph(graph, options), name)

Nothing that happens to the cache can make a result wrong or a compilation fail. An entry is used
only if its hash, its structure and its key are right; otherwise the program is compiled again, with
a warning. A compilation that fails leaves nothing behind.
"""

from __future__ import annotations

import functools
import json
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from neuronxcc import __version__, faults
from neuronxcc.cache.explain import explain_miss
from neuronxcc.cache.key import CacheKey
from neuronxcc.cache.local import FLAGS_NAME, LOG_NAME, LocalStore
from neuronxcc.cache.messages import LASTING, LOG, say, set_log_level, unwritten, warn
from neuronxcc.cache.private import private_directory, shared_name
from neuronxcc.cache.remote import RemoteStore
from neuronxcc.environment.compilation import (
    NEURON_CACHE_EXPLAIN,
    NEURON_COMPILE_CACHE_URL,
    TORCH_NEURONX_NEFF_CACHE_DIR,
)
from neuronxcc.files import UntrustedFileError
from neuronxcc.neff.container import NeffInfo, read_neff, write_neff
from neuronxcc.options import Options, Wrapper
from neuronxcc.program.errors import NeffError
from neuronxcc.program.program import Program

DEFAULT_DIRECTORY = Path("/tmp/neff_cache")  # noqa: S108 - documented; made private before its use
VERSION_FOLDER = f"neuronxcc-{__version__}"


class Compiled(NamedTuple):
    """The answer of a cache to a key.

    Attributes:
        program: The program.
        hit: Whether it was in the cache.
        path: The NEFF in the local tier, None if it could not be kept.
    """

    program: Program
    hit: bool
    path: Path | None


class CompileCache:
    """Programs by key, in a directory and, if one is given, in a shared place behind it.

    Args:
        local: The local tier, None to keep nothing.
        remote: The shared tier.
        explain: Say on standard error for every miss which part of the key is new.
    """

    def __init__(
        self, local: LocalStore | None, remote: RemoteStore | None = None, *, explain: bool = False
    ) -> None:
        self.local = local
        self.remote = remote
        self.explain = explain

    def compile(
        self,
        key: CacheKey,
        build: Callable[[], Program],
        options: Options,
        *,
        name: str = "",
    ) -> Compiled:
        """Return the program of a key, building it if it isn't there.

        Processes that want the same key at once build it once: the others wait.

        Args:
            key: The key.
            build: Makes the program; what it raises passes, and nothing is kept.
            options: What it is built with, for the NEFF to tell.
            name: Name of the model, for people.
        """
        program = self.lookup(key)
        if program is not None:
            return self._hit(key, program)
        with self._locked(key):
            # Another process may have built it while this one waited.
            program = self._load(key, quiet=True)
            if program is not None:
                return self._hit(key, program)
            if self.explain:
                say(explain_miss(self.local, key, name))
            faults.reach(faults.COMPILATION, name)
            program = build()
            LOG.info("Compiler status PASS")
            path = self.store(key, program, options, name)
        return Compiled(program, hit=False, path=path)

    def lookup(self, key: CacheKey) -> Program | None:
        """The program of a key, None if there is none that can be used."""
        program = self._load(key)
        return self._fetch(key) if program is None else program

    def store(
        self, key: CacheKey, program: Program, options: Options, name: str = ""
    ) -> Path | None:
        """Keep a program.

        Returns:
            The file in the local tier, None (after a warning) if it could not be written.
        """
        if self.local is None and self.remote is None:
            return None
        info = NeffInfo(
            name or program.name,
            options.target,
            options.lnc,
            options.flags(),
            key.digest,
            key.labels(),
        )
        try:
            data = write_neff(
                program, info, compress=not options.enable_fast_loading_neuron_binaries
            )
        except NeffError as error:
            warn(f"{program.name!r} is not kept: {error}")
            return None
        if self.remote is not None:
            with self._remote_trouble(f"cannot be written to; {program.name!r} is not shared"):
                self.remote.write(key, data)
        beside = {
            FLAGS_NAME: json.dumps(options.flags()).encode(),
            LOG_NAME: _log_of(program, options, name).encode(),
        }
        return self._keep(key, data, name, beside)

    def adopt(self, key: CacheKey, data: bytes, name: str = "") -> Path | None:
        """Keep a NEFF that somebody else compiled, unless its program is there.

        Args:
            key: The key.
            data: From anywhere.
            name: Name of the model, for people.

        Returns:
            The file in the local tier, None (after a warning) if it could not be written.

        Raises:
            NeffError: It is damaged, or the program of another key. Nothing has changed.
        """
        _program_of(key, data)
        with self._locked(key):
            there = self._load(key, quiet=True) is not None
            return self.path(key) if there else self._keep(key, data, name)

    def path(self, key: CacheKey) -> Path | None:
        """The file of a key in the local tier, None if there isn't one."""
        if self.local is None:
            return None
        path = self.local.path(key)
        return path if path.is_file() else None

    def _hit(self, key: CacheKey, program: Program) -> Compiled:
        path = self.path(key)
        LOG.info("Using a cached neff at %s. Exiting with a successfully compiled graph.", path)
        return Compiled(program, hit=True, path=path)

    def _load(self, key: CacheKey, *, quiet: bool = False) -> Program | None:
        """The program of a key in the local tier; trouble is warned about unless it was before."""
        if self.local is None:
            return None
        path = self.local.path(key)
        try:
            data = self.local.read(key)
            return None if data is None else _program_of(key, data)
        except (OSError, NeffError) as error:
            if not quiet:
                warn(f"{path} cannot be used, so the program is compiled again: {error}")
            return None

    def _fetch(self, key: CacheKey) -> Program | None:
        """The program of a key in the shared tier; it is then kept in the local one."""
        if self.remote is None:
            return None
        data = None
        url = self.remote.url
        try:
            with self._remote_trouble("cannot be read; programs are compiled here"):
                data = self.remote.read(key)
            if data is None:
                return None
            program = _program_of(key, data)
        except (UntrustedFileError, NeffError) as error:
            place = f"{url}: {key.folder}"
            warn(f"{place} cannot be used, so the program is compiled again: {error}")
            return None
        with self._locked(key):
            self._keep(key, data, "")
        return program

    def _keep(
        self, key: CacheKey, data: bytes, name: str, beside: Mapping[str, bytes] | None = None
    ) -> Path | None:
        if self.local is None:
            return None
        try:
            return self.local.write(key, data, name, beside)
        except OSError as error:
            if (trouble := unwritten(error)) is not None:
                warn(
                    f"the compiled program cannot be kept in {self.local.root}, so it will be "
                    f"compiled again next time: {trouble}"
                )
            return None

    @contextmanager
    def _locked(self, key: CacheKey) -> Iterator[None]:
        """Hold the lock of a key; go without where there can be none."""
        with ExitStack() as stack:
            if self.local is not None:
                try:
                    stack.enter_context(self.local.lock(key, functools.partial(_on_wait, key)))
                except OSError as error:
                    # Files are replaced in one step, so this costs at most a second compilation.
                    LOG.info("no lock for %s: %s", key.folder, error)
            yield

    @contextmanager
    def _remote_trouble(self, message: str) -> Iterator[None]:
        """Turn an error of the shared tier into a warning, and do without it from then on."""
        assert self.remote is not None
        url = self.remote.url
        try:
            yield
        except UntrustedFileError:  # of one entry
            raise
        except Exception as error:  # noqa: BLE001 - each file system has its own classes
            self.remote = None
            warn(f"the shared cache {url} {message}: {type(error).__name__}: {error}")


def _log_of(program: Program, options: Options, name: str) -> str:
    """Facts about a compilation that stand beside its result: equal for equal compilations."""
    lines = [
        f"neuronx-cc {__version__}: {name or program.name}",
        f"options: {shlex.join(options.flags())}",
        *options.notes,
        f"{len(program.steps)} steps, {program.scratch_bytes} bytes of scratchpad",
        "Compiler status PASS",
    ]
    return "\n".join(lines) + "\n"


def _on_wait(key: CacheKey, holder: str) -> None:
    say(f"waiting for {holder}, which is compiling the same graph ({key.folder})")


def _program_of(key: CacheKey, data: bytes) -> Program:
    """The program in the bytes of an entry; NeffError unless all is right."""
    neff = read_neff(data)
    if neff.info.key != key.digest:
        raise NeffError("it is the program of another key")
    return neff.program


def open_cache(
    wrapper: Wrapper | None = None, environ: Mapping[str, str] | None = None
) -> CompileCache:
    """The cache that flags and environment ask for; the same object each time.

    The place is `--cache_dir`, else TORCH_NEURONX_NEFF_CACHE_DIR, else NEURON_COMPILE_CACHE_URL,
    else /tmp/neff_cache. A URL is a shared tier behind the default directory, of which is found
    out each time whether it is still private.
    """
    wrapper = Wrapper() if wrapper is None else wrapper
    if wrapper.log_level:
        set_log_level(wrapper.log_level)
    explain = NEURON_CACHE_EXPLAIN.get(environ)
    if wrapper.no_cache:
        return _open(None, "", private=False, explain=explain)
    named = TORCH_NEURONX_NEFF_CACHE_DIR.get(environ) or NEURON_COMPILE_CACHE_URL.get(environ)
    place = wrapper.cache_dir or named
    if place and "://" not in place:
        return _open(Path(place).expanduser().absolute(), "", private=False, explain=explain)
    return _open(default_directory(), place, private=True, explain=explain)


@functools.cache
def _open(directory: Path | None, url: str, *, private: bool, explain: bool) -> CompileCache:
    remote = None
    if url:
        try:
            remote = RemoteStore(url, VERSION_FOLDER)
        except (ImportError, ValueError) as error:
            warn(f"the shared cache {url} is not used: {error}")
    local = None
    if directory is not None:
        local = LocalStore(directory, VERSION_FOLDER, private=private)
    return CompileCache(local, remote, explain=explain)


def default_directory(base: Path = DEFAULT_DIRECTORY) -> Path | None:
    """The directory to use where the user named none: private to the user, created if need be.

    Anyone can create `/tmp/neff_cache` first. If it isn't private, its sibling with the number of
    the user is taken, and that is said; None, after a warning, if that one isn't either.
    """
    sibling = shared_name(base)
    known = sibling.exists()
    try:
        return private_directory(base)
    except OSError as error:
        # Told once and not by every process.
        quiet = known or error.errno in LASTING
        LOG.log(logging.INFO if quiet else logging.WARNING, "%s; using %s", error, sibling)
    try:
        return private_directory(sibling)
    except OSError as error:
        remedy = f"set {TORCH_NEURONX_NEFF_CACHE_DIR.name} to a directory of yours"
        if (trouble := unwritten(error)) is not None:
            warn(f"compiled programs are not kept: {trouble}; {remedy}")
        return None
