"""The compiler's options: read from flags, from the environment, and from `torch.compile`.

>>> parse("--auto-cast=all -O1 --auto-cast matmult", environ={}).auto_cast
'matmult'
>>> parse("-O1", {"optlevel": 3, "auto_cast_type": "tf32"}, environ={}).optlevel
3
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NoReturn

from neuronxcc.environment.compilation import NEURON_CC_FLAGS, NEURON_RT_STOCHASTIC_ROUNDING_EN
from neuronxcc.machine import MachineConfigError, named_lnc, named_target
from neuronxcc.option_table import (
    BY_NAME,
    DOWNCASTS,
    FLAGS,
    LEVELS,
    Flag,
    Status,
    Value,
    find,
    find_key,
)
from neuronxcc.targets import DEFAULT_TARGET, Target, UnknownTargetError, get_target, target_names

Source = str | Sequence[str] | Mapping[str, object]


class OptionError(ValueError):
    """An option that the compiler does not take.

    Attributes:
        option: Name of the option or variable.
        given: Its value as text, "" if it has none.
        allowed: What would have been accepted, as text.
        code: The documented code, "" where the documentation has none.
    """

    def __init__(self, option: str, given: str, allowed: str, remedy: str, code: str = "") -> None:
        self.option, self.given, self.allowed, self.code = option, given, allowed, code
        prefix = f"[{code}] " if code else ""
        what = f"{option}={given}" if given else option
        super().__init__(f"{prefix}{what} is not valid; allowed: {allowed}. {remedy}")


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The flags that the cache reads; the compiler never sees them.

    Attributes:
        cache_dir: Directory or URL of the cache; "" to let the environment decide.
        no_cache: Compile always and keep nothing.
        retry_failed_compilation: Of neuron_parallel_compile; others never keep failures.
        log_level: "WARNING", "INFO" or "ERROR", "" if not given.
        model_name: Name for the NEFFs of a model, "" if not given.
    """

    cache_dir: str = ""
    no_cache: bool = False
    retry_failed_compilation: bool = False
    log_level: str = ""
    model_name: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one compilation, with the documented defaults.

    Attributes:
        framework: "XLA".
        target: Name of the target: "trn1", "trn1n", "inf2", "trn2", "trn3".
        lnc: Physical cores of a logical core.
        model_type: "generic", "transformer", "unet-inference".
        auto_cast: "none", "matmult", "all": which float32 operators compute in `auto_cast_type`.
        auto_cast_type: "bf16", "fp16", "tf32", "fp8_e4m3".
        native_int64: As given: "default", "enabled", "disabled"; see `int64_is_native`.
        implicit_integer_downcast: As given: ("default",), ("all",), ("none",) or sorted operators;
            see `integer_downcasts`.
        distribution_strategy: "", "llm-training", "fsdp".
        optlevel: 1, 2 or 3.
        enable_mixed_precision_accumulation: Sums of 16-bit types accumulate in float32.
        enable_saturate_infinity: The compiler's transposes turn infinities into the largest value.
        enable_fast_context_switch: Weights are loaded when the model starts.
        enable_fast_loading_neuron_binaries: The NEFF is not compressed.
        stochastic_rounding: Results of 16-bit types are rounded by chance. No flag sets it, only
            NEURON_RT_STOCHASTIC_ROUNDING_EN.
        logfile: File of the log.
        output: File of the NEFF.
        verbose: Level of messages as in `logging`; 30 is "warning".
        recorded: Internal options as (name, value), "" for none, in the order given.
        wrapper: What the cache reads.
        notes: What the user should be told: deprecated options, options without effect.
    """

    framework: str = "XLA"
    target: str = DEFAULT_TARGET
    lnc: int = get_target(DEFAULT_TARGET).default_lnc
    model_type: str = "generic"
    auto_cast: str = "none"
    auto_cast_type: str = "bf16"
    native_int64: str = "default"
    implicit_integer_downcast: tuple[str, ...] = ("default",)
    distribution_strategy: str = ""
    optlevel: int = 2
    enable_mixed_precision_accumulation: bool = True
    enable_saturate_infinity: bool = False
    enable_fast_context_switch: bool = False
    enable_fast_loading_neuron_binaries: bool = False
    stochastic_rounding: bool = False
    logfile: str = "log-neuron-cc.txt"
    output: str = "file.neff"
    verbose: int = LEVELS["warning"]
    recorded: tuple[tuple[str, str], ...] = ()
    wrapper: Wrapper = Wrapper()
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def target_spec(self) -> Target:
        """The facts about the target."""
        return get_target(self.target)

    @property
    def int64_is_native(self) -> bool:
        """Return whether 64-bit integers are computed in 64 bits on the target."""
        return self.native_int64 == "enabled" and self.target_spec.native_int64

    @property
    def integer_downcasts(self) -> frozenset[str]:
        """Operators that may compute integers with loss. Today's default is all of them."""
        if self.implicit_integer_downcast == ("default",):
            return frozenset(DOWNCASTS)
        return self.accepted_downcasts

    @property
    def accepted_downcasts(self) -> frozenset[str]:
        """Those of them that the user named: portability forgives no loss that nobody asked for."""
        given = self.implicit_integer_downcast
        return frozenset(DOWNCASTS if given == ("all",) else given) - {"default", "none"}

    @property
    def unsafe_fp8(self) -> bool:
        """Return whether float8_e4m3fn may be taken for float8_e4m3, by any option."""
        name = "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"
        return any(name == option or name in value.split() for option, value in self.recorded)

    @property
    def max_instructions(self) -> int | None:
        """Limit of --internal-max-instruction-limit; None if there is none."""
        text = dict(self.recorded).get("--internal-max-instruction-limit", "")
        return int(text) if text else None

    @property
    def saves_temps(self) -> bool:
        """Return whether every pass writes its graph to a file (`--pipeline` has SaveTemps)."""
        return any(
            name == "--pipeline" and "savetemps" in value.lower().split()
            for name, value in self.recorded
        )

    @property
    def workdir(self) -> str:
        """Directory of these files, "" for the current one."""
        return dict(self.recorded).get("--workdir", "")

    def canonical(self) -> dict[str, str]:
        """Return the options that a compiled program depends on, equal for flags of equal meaning.

        This is a part of the cache's key. Target and LNC are in it; paths and verbosity are not.
        """
        parts = {
            flag.field: str(getattr(self, flag.field))
            for flag in FLAGS
            if flag.program and flag.field and flag.status is Status.DOCUMENTED
        }
        if self.auto_cast == "none":
            del parts["auto_cast_type"]
        parts["native_int64"] = str(self.int64_is_native)
        parts["implicit_integer_downcast"] = ",".join(sorted(self.integer_downcasts))
        relevant = [
            f"{name}={value}"
            for name, value in self.recorded
            if (flag := find(name)) is None or flag.program
        ]
        parts["recorded"] = shlex.join(relevant)
        if self.stochastic_rounding:
            parts["stochastic_rounding"] = "True"
        return parts

    def flags(self) -> tuple[str, ...]:
        """A command line for these options: `parse(options.flags(), environ={}) == options`.

        Options at their default are left out, except the target and LNC, which depend on the
        environment. Stochastic rounding has no flag; it stays with the environment.
        """
        found = [f"--target={self.target}", f"--lnc={self.lnc}"]
        for flag in FLAGS:
            source = self.wrapper if flag.status is Status.WRAPPER else self
            if flag.field in {"", "target", "lnc"} or flag.status is Status.DEPRECATED:
                continue
            value = getattr(source, flag.field)
            if value == getattr(
                _DEFAULT_WRAPPER if source is self.wrapper else _DEFAULT, flag.field
            ):
                continue
            if flag.value in {Value.ON, Value.OFF}:
                found += [flag.name] if value is (flag.value is Value.ON) else []
            else:
                text = ",".join(value) if isinstance(value, tuple) else str(value)
                found.append(f"{flag.name}={text}")
        for name, value in self.recorded:
            known = find(name)
            bare = not value and known is not None and known.value is not Value.TEXT
            found.append(name if bare else f"{name}={value}")
        return tuple(found)


_DEFAULT = Options()
_DEFAULT_WRAPPER = Wrapper()


def parse(*sources: Source, environ: Mapping[str, str] | None = None) -> Options:
    """Read options; the right-most of several wins, and a later source over an earlier one.

    Args:
        sources: Flags as one text with shell quoting, as words, or by name as in
            `torch.compile(options=...)`, with dashes or underscores.
        environ: Variables that decide target and LNC where no flag does, and stochastic rounding;
            those of the process if None. NEURON_CC_FLAGS is not read: see `from_environment`.

    Raises:
        OptionError: An unknown option, a wrong value, or a combination that is not possible; the
            message names the option, its value, what is allowed, and what to do.
    """
    values: dict[str, object] = {}
    wrapper: dict[str, object] = {}
    recorded: list[tuple[str, str]] = []
    notes: list[str] = []
    for source in sources:
        for flag, name, text in _read(source):
            if not flag.field:
                _check_recorded(name, text)
                recorded.append((name, text))
                continue
            into = wrapper if flag.status is Status.WRAPPER else values
            into[flag.field] = _convert(flag, name, text)
            if flag.status is Status.DEPRECATED:
                notes.append(f"{name} is deprecated; use {flag.instead}")
    target = _target(values, environ)
    lnc = _lnc(values, environ, target)
    if values.get("native_int64") == "enabled" and not target.native_int64:
        notes.append(f"--native-int64=enabled has no effect: {target.name} has no 64-bit integers")
    settings = {
        **values,
        "target": target.name,
        "lnc": lnc,
        "recorded": tuple(recorded),
        "stochastic_rounding": _rounding(environ),
    }
    made = Wrapper(**wrapper)  # type: ignore[arg-type]  # _convert gives each field its type
    return Options(**settings, wrapper=made, notes=tuple(notes))  # type: ignore[arg-type]


#: Recorded options whose values mean something here: the test and what is allowed.
NUMBERS: dict[str, tuple[Callable[[int], bool], str]] = {
    "--num-parallel-jobs": (lambda n: n > 0, "a number above 0"),
    "--internal-max-instruction-limit": (lambda n: n > 0, "a number above 0"),
    "--hbm-scratchpad-page-size": (
        lambda n: 0 < n < 4096 and n % 512 == 0, "MiB: a multiple of 512 below 4096"
    ),
}  # fmt: skip


def _check_recorded(name: str, text: str) -> None:
    if name not in NUMBERS:
        return
    fits, allowed = NUMBERS[name]
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
    if not fits(number):
        raise OptionError(name, text or "''", allowed, "Give such a number.")


def from_environment(
    options: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Options:
    """The options of a process: NEURON_CC_FLAGS, then those given to `torch.compile`.

    Raises:
        OptionError: As `parse`.
    """
    return parse(NEURON_CC_FLAGS.text(environ), options or {}, environ=environ)


def for_eager(target: str, environ: Mapping[str, str] | None = None) -> Options:
    """Return the part of NEURON_CC_FLAGS that eager mode reads: the integer options of a machine.

    All others are left to the first compilation: a wrong one is no reason to have no device.

    Raises:
        OptionError: An integer option has a wrong value, or the flags are no words.
        UnknownTargetError: There is no such target.
    """
    values = {
        flag.field: _convert(flag, name, text)
        for flag, name, text in _read(NEURON_CC_FLAGS.text(environ), _skip)
        if flag.field in {"native_int64", "implicit_integer_downcast"}
    }
    chip = get_target(target)
    return Options(target=chip.name, lnc=chip.default_lnc, **values)  # type: ignore[arg-type]


def _refuse(word: str, name: str) -> NoReturn:
    raise _unknown(word, name)


def _skip(_word: str, _name: str) -> None:
    pass


def _read(
    source: Source, unknown: Callable[[str, str], None] = _refuse
) -> Iterator[tuple[Flag, str, str]]:
    """Options of a source: the option, the name as written, the text of its value."""
    if isinstance(source, Mapping):
        return _read_mapping(source)
    try:
        words = shlex.split(source) if isinstance(source, str) else list(source)
    except ValueError as error:
        raise OptionError(
            "flags", repr(source), "words as a shell reads them", f"Here: {error}."
        ) from error
    return _read_words(words, unknown)


def _read_words(
    words: Sequence[str], unknown: Callable[[str, str], None]
) -> Iterator[tuple[Flag, str, str]]:
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name, equals, text = word.partition("=")
        if word[:2] == "-O" and word[2:3] not in {"", "="}:
            name, equals, text = "-O", "=", word[2:]
        flag = find(name)
        if flag is None:
            unknown(word, name)
            continue
        if flag.value in {Value.ON, Value.OFF}:
            if equals:
                raise OptionError(name, text, flag.value.value, "Write it without a value.")
        elif not equals:
            end = position + 1
            if flag.value is Value.MANY:
                end = position
                while end < len(words) and not words[end].startswith("-"):
                    end += 1
            elif end > len(words):
                raise OptionError(name, "", flag.allowed, "It needs a value.")
            text = " ".join(words[position:end])
            position = end
        yield flag, name, text


def _read_mapping(source: Mapping[str, object]) -> Iterator[tuple[Flag, str, str]]:
    for key, value in source.items():
        flag = find_key(key)
        if flag is None:
            raise _unknown(key, key)
        switch = flag.value in {Value.ON, Value.OFF}
        if isinstance(value, bool):
            if value and (switch or not flag.field):
                yield flag, flag.name, ""
                continue
            if not value and switch:
                # Off: the same field the other way round, nothing for what is only recorded.
                other = Value.OFF if flag.value is Value.ON else Value.ON
                if flag.field and not flag.sets:
                    yield Flag(flag.names, flag.field, other, flag.help), flag.name, ""
                continue
        elif not switch and isinstance(value, int | str):
            yield flag, flag.name, str(value)
            continue
        elif flag.value in {Value.DOWNCASTS, Value.MANY} and isinstance(value, list | tuple):
            separator = "," if flag.value is Value.DOWNCASTS else " "
            yield flag, flag.name, separator.join(map(str, value))
            continue
        allowed = "True or False" if switch else flag.allowed
        raise OptionError(key, repr(value), allowed, "Give a value of that form.")


def _unknown(word: str, name: str) -> OptionError:
    bare = name.strip().lstrip("-").replace("_", "-")
    by_bare = {known.lstrip("-").replace("_", "-"): known for known in BY_NAME}
    near = difflib.get_close_matches(bare, by_bare, n=1, cutoff=0.75)
    hint = f"Did you mean {by_bare[near[0]]}?" if near else "See `neuronx-cc compile --help`."
    return OptionError(word, "", "the documented options and --internal-...", hint)


def _convert(flag: Flag, name: str, text: str) -> object:
    """The value of a field from its text."""
    value: object = None
    match flag.value:
        case Value.ON | Value.OFF:
            value = int(flag.sets) if flag.sets else flag.value is Value.ON
        case Value.CHOICE:
            choice = dict(flag.aliases).get(text, text)
            value = choice if choice in flag.choices else None
        case Value.INT:
            value = int(text) if text in flag.choices else None
        case Value.LEVEL:
            number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None
            value = LEVELS.get(text, number)
        case Value.DOWNCASTS:
            items = set(text.split(","))
            if text in {"default", "all", "none"} or items <= set(DOWNCASTS):
                value = tuple(sorted(items))
        case _:
            value = text
    if value is None:
        raise OptionError(name, text or "''", flag.allowed, "Choose one of these.")
    return value


def _rounding(environ: Mapping[str, str] | None) -> bool:
    text = NEURON_RT_STOCHASTIC_ROUNDING_EN.text(environ) or "0"
    if text not in {"0", "1"}:
        raise OptionError(
            NEURON_RT_STOCHASTIC_ROUNDING_EN.name, text, "0, 1", "Set it to 1 or unset it."
        )
    return text == "1"


def _target(values: Mapping[str, object], environ: Mapping[str, str] | None) -> Target:
    given = values.get("target")
    if given is None:
        try:
            return named_target(environ) or get_target(DEFAULT_TARGET)
        except MachineConfigError as error:
            raise _of_variable(error) from error
    try:
        return get_target(str(given))
    except UnknownTargetError as error:
        raise OptionError(
            "--target",
            str(given) or "''",
            ", ".join(target_names()),
            error.remedy or "Name one of these.",
        ) from error


def _lnc(values: Mapping[str, object], environ: Mapping[str, str] | None, target: Target) -> int:
    given = values.get("lnc")
    if given is not None and given not in target.supported_lnc:
        raise _wrong_lnc(str(given), target)
    try:
        named = named_lnc(environ, target)
    except MachineConfigError as error:
        raise _of_variable(error) from error
    if given is not None and named is not None and given != named[1]:
        raise OptionError(
            "--lnc",
            str(given),
            f"the value of {named[0]}, {named[1]}",
            "Compiler and runtime must agree; set both alike.",
            "NCC_EARG001",
        )
    if given is not None:
        return int(str(given))
    return named[1] if named is not None else target.default_lnc


def _of_variable(error: MachineConfigError) -> OptionError:
    return OptionError(error.variable, error.given, error.allowed, error.remedy, error.code or "")


def _wrong_lnc(text: str, target: Target) -> OptionError:
    return OptionError(
        "--lnc",
        text,
        f"{', '.join(map(str, target.supported_lnc))} on {target.name}",
        f"Unsupported Logical Neuron Core (LNC) configuration: use {target.default_lnc}, or a "
        "target that groups its cores like that.",
        "NCC_EARG001",
    )


assert {flag.field for flag in FLAGS if flag.field and flag.status is not Status.WRAPPER} <= {
    item.name for item in fields(Options)
}
