"""The texts of `--help`, made from the table of options."""

from __future__ import annotations

import shutil
import textwrap

from neuronxcc.option_table import FLAGS, Flag, Status, Value

_MAIN = """\
usage: neuronx-cc <command> [<options>]

commands:
  compile         compile a model: HLO protobuf, StableHLO text or bytecode, to a NEFF
  list-operators  print the operators that can be compiled, one a line
  explain         tell what error codes mean and what to do
  --version       print versions
  --help          print this; `neuronx-cc <command> --help` tells about a command"""

_COMPILE = """\
usage: neuronx-cc compile <model files> --framework XLA --target TARGET [<options>]

A model file is an HloModuleProto, or StableHLO. The NEFF goes to --output, or with several files to
the name of each with `.neff`. Of an option that is given twice the right-most counts."""

_OPERATORS = """\
usage: neuronx-cc list-operators --framework XLA

Prints names of XlaBuilder, one a line."""

_EXPLAIN = """\
usage: neuronx-cc explain CODE...

Prints what error codes mean, for example NCC_EVRF010 or NKI110, and what to do."""

#: Ours, beyond the vendor's; `compile` reads them itself.
OWN = {
    "--explain": "Print where the memory goes, and what every pass did and took",
}
#: Of the options that the vendor has without documenting them, those that do something here.
EFFECTS = {
    "--num-parallel-jobs": "a number: how many of several model files are compiled at once, 8 by "
    "default, never more than there are processors. Inside one file nothing runs in parallel",
    "--pipeline": "compile SaveTemps: write the program after every stage, as text",
    "--workdir": "a directory: where these texts go, by default the current one",
    "--internal-max-instruction-limit": "a number: refuse a module of more instructions",
    "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3": "take float8_e4m3fn before trn3, with its own "
    "values",
}


def usage(command: str) -> str:
    """The help of a command; "" for the overview."""
    if command == "compile":
        return "\n".join([_COMPILE, "", *_options()])
    return {"list-operators": _OPERATORS, "explain": _EXPLAIN}.get(command, _MAIN)


def _options() -> list[str]:
    width = max(60, min(100, shutil.get_terminal_size().columns))
    lines = []
    for title, status in (("options", Status.DOCUMENTED), ("deprecated", Status.DEPRECATED)):
        lines.append(f"{title}:")
        for flag in FLAGS:
            if flag.status is status:
                lines += _entry(_spelling(flag), _text(flag), width)
        lines.append("")
    lines.append("of this compiler alone:")
    for name, text in OWN.items():
        lines += _entry(name, text, width)
    lines += ["", "not documented by the vendor, with an effect:"]
    for name, text in EFFECTS.items():
        lines += _entry(name, text, width)
    names = [flag.name for flag in FLAGS if flag.status is Status.INTERNAL]
    rest = ", ".join(name for name in names if name not in EFFECTS)
    text = f"accepted and recorded, without effect: {rest}, --internal-..."
    lines += ["", *textwrap.wrap(text, width, break_on_hyphens=False)]
    return lines


def _spelling(flag: Flag) -> str:
    value = "" if flag.value in {Value.ON, Value.OFF} else f" {flag.allowed}"
    return f"{', '.join(flag.names)}{value}"


def _text(flag: Flag) -> str:
    return f"{flag.help}. Use {flag.instead}." if flag.instead else flag.help


def _entry(name: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(text, width - 6)
    return [f"  {name}", *(f"      {line}" for line in wrapped)]
