"""The command `neuron-packager`: what is in a NEFF file, out of it, and back into one.

    neuron-packager info FILE [--json]
    neuron-packager unpack FILE [-o DIR] [--force]
    neuron-packager pack DIR [-o FILE] [--force] [--uncompressed]
    neuron-packager validate FILE...

`unpack` is the documented command; the others are ours. `info` reads the header of NEFFs of the
vendor's compiler too, and `unpack` their archive; they cannot be validated beyond their hash.

Exit codes: 0 done, 1 a file is wrong or cannot be read or written (one line on standard error), 2
wrong words.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from neuron_tools.packager_files import new_folder, refuse_existing, take_out, write_new
from neuron_tools.packager_info import describe, document, verdict
from neuronxcc import __version__
from neuronxcc.neff.container import pack_files
from neuronxcc.program.errors import NeffError
from neuronxcc.unread import ends_quietly

_EXPECTED = (NeffError, OSError)


def _info(options: argparse.Namespace) -> int:
    found = document(options.file.read_bytes())
    _say(json.dumps(found, indent=2) if options.json else describe(found))
    if "error" not in found:
        return 0
    _complain(f"error: {options.file}: {found['error']}")
    return 1


def _unpack(options: argparse.Namespace) -> int:
    files = take_out(options.file.read_bytes())
    target = options.output or Path(options.file.stem)
    if target == options.file:
        raise FileExistsError(f"{target} is the NEFF itself: name another folder by -o")
    new_folder(target, files, replace=options.force)
    _say(f"{len(files)} files unpacked to {target}")
    return 0


def _pack(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder")
    target = options.output or Path(f"{folder.resolve().name}.neff")
    refuse_existing(target, replace=options.force, folder=False)
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }
    write_new(target, pack_files(files, compress=not options.uncompressed), replace=options.force)
    _say(f"{len(files)} files packed into {target}")
    return 0


def _validate(options: argparse.Namespace) -> int:
    code = 0
    for path in options.files:
        try:
            _say(f"{path}: {verdict(path.read_bytes())}")
        except _EXPECTED as error:
            _complain(f"{path}: {_text(error)}")
            code = 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "neuron-packager", description="Look into NEFF files, unpack them and pack them again."
    )
    parser.add_argument("--version", action="version", version=f"neuron-packager {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    info = commands.add_parser("info", aliases=["inspect"], help="print what is in a NEFF")
    info.add_argument("file", type=Path, metavar="FILE")
    info.add_argument("--json", action="store_true", help="for programs")
    info.set_defaults(run=_info)

    unpack = commands.add_parser("unpack", help="write the files in a NEFF to a folder")
    unpack.add_argument("file", type=Path, metavar="FILE")
    unpack.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="default: FILE's name without its ending"
    )
    unpack.add_argument("-f", "--force", action="store_true", help="replace a folder that is there")
    unpack.set_defaults(run=_unpack)

    pack = commands.add_parser("pack", help="make a NEFF of the files that unpack wrote")
    pack.add_argument("folder", type=Path, metavar="DIR")
    pack.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: DIR.neff")
    pack.add_argument("-f", "--force", action="store_true", help="replace a file that is there")
    pack.add_argument("--uncompressed", action="store_true", help="faster to load")
    pack.set_defaults(run=_pack)

    validate = commands.add_parser("validate", help="check hash and structure of NEFFs")
    validate.add_argument("files", type=Path, metavar="FILE", nargs="+")
    validate.set_defaults(run=_validate)
    return parser


@ends_quietly
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Its words; `sys.argv[1:]` if None.

    Returns:
        The exit code: 0, or 1 after an error that was printed. Wrong words end the process with 2.
    """
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except BrokenPipeError:
        raise
    except (*_EXPECTED, shutil.Error) as error:
        _complain(
            f"error: {getattr(options, 'file', getattr(options, 'folder', ''))}: {_text(error)}"
        )
        return 1
    return code


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


def _say(text: str) -> None:
    print(text)  # noqa: T201 - a command prints


def _complain(text: str) -> None:
    print(f"neuron-packager: {text}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
