"""The documented error codes: what each says, why, what to do, and whether it arises here.

Source: the error pages of the AWS Neuron documentation (compiler/error-codes, SDK 2.32), in our own
words. `neuronx-cc explain` and docs/error-codes.md are made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One code.

    Attributes:
        code: "NCC_EVRF010".
        message: What every error of the code says, in part.
        cause: When it arises.
        remedy: What to do.
        instead: Why it can't arise in the emulation, or what does instead; "" if it arises.
    """

    code: str
    message: str
    cause: str
    remedy: str
    instead: str = ""


_TOO_MUCH = "combined memory needed for the model tensors exceeds the HBM limit"
_TOO_MANY = "number of instructions generated exceeds the limit"
_SMALLER = "a smaller batch, or tensor or pipeline parallelism"
_SPLIT = "split the model: pipeline or tensor parallelism, or several smaller graphs"
_TARGETS = "a target from the list in docs/neuronx-cc.md"
_LOSS = (
    "cast to a floating-point type (float32 is exact to 2^24), or accept the loss: "
    "--implicit-integer-downcast={} (in NEURON_CC_FLAGS)"
)
_MX = "QuantizeMX custom call"
_DOT = "ScaledMatmul custom call"
_BLOCK = "in __op$block_scaled_dot, "


def _instead(code: str) -> str:
    return f"what would be this error is NCC_{code}: there is one check of it here"


def _code(
    name: str, message: str, cause: str, remedy: str, instead: str = ""
) -> tuple[str, ErrorCode]:
    return f"NCC_{name}", ErrorCode(f"NCC_{name}", message, cause, remedy, instead)


CODES: dict[str, ErrorCode] = dict(
    (
        _code(
            "EARG001", "Unsupported Logical Neuron Core (LNC) configuration",
            "--lnc, or a variable, asks for cores that the target does not group like that",
            "use --lnc=1 on trn1 and inf2",
        ),
        _code(
            "EBIR023", "MLP kernel intermediate size exceeds the maximum supported value of 4096",
            "the vendor's own kernel for an MLP, which takes 4096 at most",
            "use more tensor parallelism",
            "an MLP is no kernel here: products and elementwise steps of any size",
        ),
        _code(
            "EBVF030", _TOO_MANY, "the graph is too large", _SPLIT, _instead("EVRF007")
        ),
        _code(
            "EHCA005", "custom call instruction with a target name that is not recognized",
            "a custom call of an unknown target", _TARGETS,
        ),
        _code(
            "EMOD025", "Dynamic shape is not supported",
            "a dimension is bounded, unbounded or a value",
            "compile with static shapes (torch.compile(dynamic=False)); pad to a few sizes",
        ),
        _code("EOOM001", _TOO_MUCH, "inputs, results and scratchpad need more than a core has",
              _SMALLER),
        _code("EOOM002", _TOO_MUCH, "as NCC_EOOM001, in another stage", _SMALLER,
              _instead("EOOM001")),
        _code(
            "ESFH002", "unsigned 64-bit integer constant cannot be safely converted to 32-bit",
            "an unsigned 64-bit constant above 2**32", "use uint32 constants",
        ),
        _code(
            "ESPP004", "data type not supported for code generation",
            "a data type that no target computes in: 64-bit floats, float4, integers below 8 bits",
            "cast to a supported type",
        ),
        _code(
            "ESPP047", "unsupported 8-bit floating-point data type", "float8_e3m4",
            "cast to float16",
        ),
        _code(
            "EUOC002", "An unsupported operator was used", "the compiler has no such operator",
            "rewrite with others (neuronx-cc list-operators)",
        ),
        _code("EVRF001", "An unsupported operator was used", "as NCC_EUOC002, in the verifier",
              "as there", _instead("EUOC002")),
        _code(
            "EVRF004", "Complex data types are not supported on the Neuron device",
            "an operator beyond those that take complex64 since SDK 2.32",
            "split real and imaginary parts, or run this part on the CPU",
        ),
        _code(
            "EVRF005", "F8E4M3FNUZ, F8E4M3B11FNUZ or F8E5M2FNUZ used", "one of these types",
            "cast to a float8 type with infinities, or to bfloat16",
        ),
        _code(
            "EVRF006", "RNGBitGenerator using an algorithm other than RNG_DEFAULT",
            "an explicit Philox or ThreeFry", "use the default algorithm",
        ),
        _code("EVRF007", _TOO_MANY, "the graph is too large: calls count at every use", _SPLIT),
        _code("EVRF009", _TOO_MUCH, "as NCC_EOOM001, in the verifier", _SMALLER,
              _instead("EOOM001")),
        _code(
            "EVRF010",
            "simultaneous use of input and kernel dilation", "a convolution that dilates both",
            "use one of the two; dilate the other by hand",
        ),
        _code(
            "EVRF011", "strided convolution combined with dilated input",
            "a convolution with strides and a dilated input",
            "separate upsampling from downsampling",
        ),
        _code("EVRF013",
              "TopK does not support int32 or int64 input tensors", "an integer topk",
              "cast to float"),
        _code("EVRF015", "custom call instruction with a target name that is not recognized",
              "as NCC_EHCA005, in the verifier", _TARGETS, _instead("EHCA005")),
        _code(
            "EVRF016",
            "scatter-reduce cannot reduce when data or destination is integer or boolean",
            "a scatter that multiplies or takes extremes of integers or booleans",
            "cast to float32 or bfloat16",
        ),
        _code("EVRF017", "reduce-window with base dilation greater than 1", "base_dilation above 1",
              "dilate the operand by hand (pad)"),
        _code("EVRF018",
              "reduce-window with window dilation greater than 1", "window_dilation above 1",
              "use a dense window (dilation=1)"),
        _code("EVRF019", "reduce-window with", "a reduce-window of several inputs",
              "use one reduce-window per input"),
        _code(
            "EVRF022", "Shift-right-arithmetic on non 32-bit inputs is not supported",
            "a shift of 8, 16 or 64-bit integers", "cast the first operand to int32",
        ),
        _code(
            "EVRF024", "output tensor size limit of 4GB was exceeded",
            "a tensor above 4 GB; the page stands, the index no longer lists it", _SMALLER,
            "the emulation has no such limit; what a core has no memory for is NCC_EOOM001",
        ),
        _code(
            "EVRF031", "scatter out-of-bounds",
            "indices counted by an iota that is longer than the dimension", "match the sizes",
        ),
        _code(
            "EVRF035", "integer operands on this target",
            "a product of 64-bit integers, or of 32-bit ones from trn2 on; a warning while allowed",
            _LOSS.format("dot"),
        ),
        _code("EVRF036", f"{_MX} has invalid backend_config JSON", "no JSON object",
              'write {"dtype": ..., "dim": -1, "block_size": 32, "scale_method": "EMAX"}'),
        _code("EVRF037", f"{_MX} operand count must be exactly 1", "none or several operands",
              "pass the input tensor alone"),
        _code("EVRF038", f"{_MX} dim", "a dim that is neither the last nor the one before",
              "use -1 or -2"),
        _code("EVRF039", f"{_MX} block_size must be 32", "another block size", "use 32"),
        _code("EVRF040", f"{_MX} scale_method is unsupported", "another method than EMAX",
              'use "EMAX"'),
        _code("EVRF041", f"{_MX} input type is unsupported", "neither BF16 nor F16", "cast"),
        _code(
            "EVRF042", f"{_MX} is malformed",
            "an unknown dtype, or results of other types and shapes",
            "declare U32 data with the dimension divided by 4, and scales",
        ),
        _code("EVRF043", f"{_DOT} must have exactly 4 operands", f"{_BLOCK}another number",
              "pass lhs, rhs, lhs_scale, rhs_scale"),
        _code("EVRF044", f"{_DOT} LHS input type is unsupported", f"{_BLOCK}data that is not U32",
              "use the data that QuantizeMX returns"),
        _code("EVRF045", f"{_DOT} output type is unsupported", f"{_BLOCK}neither F32 nor BF16",
              "declare F32 or BF16"),
        _code("EVRF046", f"{_DOT} LHS tensor must have rank >= 2", f"{_BLOCK}a vector", "reshape"),
        _code("EVRF047", f"{_DOT} RHS tensor must have rank >= 2", f"{_BLOCK}a vector", "reshape"),
        _code("EVRF048", f"{_DOT} batch dimension mismatch",
              f"{_BLOCK}batch sizes whose products differ", "align the batch dimensions"),
        _code("EVRF049", f"{_DOT} could not parse backend_config",
              f"{_BLOCK}no JSON, or something else than integers in a list",
              "write scaled_dot_backend_config with lists of integers"),
        _code("EVRF050", f"{_DOT} contracting dimension sizes mismatch",
              f"{_BLOCK}contracting dimensions of two sizes", "align them"),
        _code(
            "EVRF051",
            "Data type F8E4M3FN is not supported on TRN1/TRN2", "float8_e4m3fn before trn3",
            "compile for trn3, cast to bfloat16, or pass "
            "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3 with weights scaled to 240 (not for "
            "QuantizeMX)",
        ),
        _code(
            "EVRF052", "Data type F8E4M3 is not supported on hardware newer than Trn3",
            "float8_e4m3 on a target after trn3", "use float8_e4m3fn",
            "every target here has float8_e4m3",
        ),
        _code("EVRF053", f"{_DOT} contracting dimension overlaps with batch dimension",
              f"{_BLOCK}a dimension in both lists", "make them disjoint"),
        _code("EVRF054", f"{_DOT} batch dimension index out of bounds",
              f"{_BLOCK}an index beyond the rank", "use indices from 0 to the rank"),
        _code("EVRF055", f"{_DOT} contracting dimension index out of bounds",
              f"{_BLOCK}an index beyond the rank", "use indices from 0 to the rank"),
        _code(
            "EVRF056", "gather encountered out of bound indices",
            "indices counted by an iota that is longer than the table",
            "raise the size of the table (max_position_embeddings below the sequence length?)",
        ),
        _code("EVRF057", f"{_MX} must return a tuple with exactly 2 outputs",
              "another type of the result", "declare (quantized_data, scale)"),
        _code("EVRF058", "must be divisible by 4", "QuantizeMX of another extent", "pad"),
        _code(
            "EVRF059", "referenced by AwsNeuronCustomNativeKernel instruction does not exist",
            "a kernel file that is at neither of the two places where it is looked for",
            "trace the model again, or copy the file to where the compiler is started",
        ),
        _code(
            "EVRF060", "Scatter does not support integer operands on this target",
            "a scatter that adds integers; a warning while allowed", _LOSS.format("scatter"),
        ),
        _code(
            "EVRF061", "AllReduce performs its reduction in f32",
            "an all-reduce of integers; a warning while allowed", _LOSS.format("all_reduce"),
        ),
        _code(
            "EVRF062", "power does not support 64-bit integer operands",
            "a power of 64-bit integers; a warning while allowed", _LOSS.format("pow"),
        ),
        _code(
            "EVRF063", "ReduceScatter performs its reduction in f32",
            "a reduce-scatter of integers; a warning while allowed",
            _LOSS.format("reduce_scatter"),
        ),
        _code(
            "EVRF064", "HLO verification failed",
            "an instruction that breaks XLA's rules, a damaged module",
            "write the module again with a sound front end",
        ),
        _code(
            "EVRF065", "was traced with an unsupported NKI version",
            "a kernel file that is not of this package's NKI",
            "trace it with the NKI of this package",
        ),
        _code("EXSP001", _TOO_MUCH, "as NCC_EOOM001, in another stage", _SMALLER,
              _instead("EOOM001")),
        _code("EXTP004", _TOO_MANY, "the graph is too large", _SPLIT, _instead("EVRF007")),
    )
)  # fmt: skip

#: Of this compiler alone.
OWN: dict[str, ErrorCode] = dict(
    (
        _code(
            "EHLO001",
            "the input",
            "bytes that are no module: neither HLO nor StableHLO",
            "give a serialised HloModuleProto, or StableHLO",
        ),
        _code(
            "IDRV001",
            "the module is nested too deeply",
            "an error of the compiler's own",
            "flatten the module, and report it",
        ),
        _code(
            "ICAP001",
            "cannot compile",
            "PyTorch captured something else than the program does",
            "what the error says; torch.compiler.disable keeps a function out",
        ),
        _code(
            "ILWR001",
            "the lowering of",
            "an error of the compiler's own: a lowering that disagrees with PyTorch",
            "exclude the function with torch.compiler.disable, and report the message",
        ),
        _code(
            "ISCH001",
            "before any step has written it",
            "an error of the compiler's own: steps in an order that cannot be right",
            "exclude the function with torch.compiler.disable, and report the message",
        ),
    )
)


def find_code(text: str) -> ErrorCode | None:
    """The code of a text as people write it: "NCC_EVRF010", "evrf010", "[EVRF010]"."""
    bare = text.strip().strip("[]").upper()
    bare = bare if bare.startswith("NCC_") else f"NCC_{bare}"
    return CODES.get(bare) or OWN.get(bare)


def explained(code: ErrorCode) -> str:
    """The output of `neuronx-cc explain`."""
    here = f"does not arise: {code.instead}" if code.instead else "arises"
    return (
        f"{code.code}\n  says:    ... {code.message} ...\n  cause:   {code.cause}\n"
        f"  remedy:  {code.remedy}\n  here:    {here}"
    )


def page() -> str:
    """The text of docs/error-codes.md."""
    lines = [
        "# Error codes of `neuronx-cc`",
        "",
        "This page is made from the table in `neuronxcc/error_codes.py`, of which",
        "`neuronx-cc explain CODE` prints one row.",
        "The codes are the documented ones of the vendor's compiler (SDK 2.32). An error has the",
        "code, what is wrong, the instruction, the user's line if the module knows it, and a",
        "remedy; it is printed to standard error and logged, and the exit code is 1.",
        "",
        "## Codes that arise",
        "",
        "| Code | Says | Cause | Remedy |",
        "|---|---|---|---|",
    ]
    lines += [_row(c.code, c.message, c.cause, c.remedy) for c in CODES.values() if not c.instead]
    lines += [
        "",
        "## Codes that don't",
        "",
        "| Code | Of the vendor's compiler | Why not here |",
        "|---|---|---|",
    ]
    lines += [_row(c.code, c.cause, c.instead) for c in CODES.values() if c.instead]
    lines += ["", "## Codes of this compiler", "", "| Code | Cause | Remedy |", "|---|---|---|"]
    lines += [_row(c.code, c.cause, c.remedy) for c in OWN.values()]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
