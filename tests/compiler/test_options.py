"""Options of the compiler: the documented table, defaults, precedence, errors, the cache's key."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.option_table import BY_NAME, DOWNCASTS, FLAGS, Status, Value
from neuronxcc.options import (
    NUMBERS,
    OptionError,
    Options,
    Source,
    Wrapper,
    from_environment,
    parse,
)


def read(*sources: Source, **environ: str) -> Options:
    return parse(*sources, environ=environ)


def test_documented_defaults() -> None:
    options = read()
    assert options == Options()
    assert (options.target, options.lnc, options.optlevel) == ("trn2", 2, 2)
    assert (options.auto_cast, options.auto_cast_type) == ("none", "bf16")
    assert options.model_type == "generic"
    assert options.enable_mixed_precision_accumulation
    assert not options.enable_saturate_infinity
    assert not options.int64_is_native
    assert options.integer_downcasts == set(DOWNCASTS)
    assert (options.logfile, options.output, options.verbose) == (
        "log-neuron-cc.txt",
        "file.neff",
        30,
    )
    assert options.wrapper == Wrapper()
    assert options.notes == ()


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("--framework XLA", "framework", "XLA"),
        ("--target=trn1", "target", "trn1"),
        ("--target trn3", "target", "trn3"),
        ("--model-type=unet-inference", "model_type", "unet-inference"),
        ("--auto-cast all", "auto_cast", "all"),
        ("--auto-cast-type=fp8_e4m3", "auto_cast_type", "fp8_e4m3"),
        ("--native-int64 enabled", "native_int64", "enabled"),
        ("--implicit-integer-downcast=pow,dot", "implicit_integer_downcast", ("dot", "pow")),
        ("--implicit-integer-downcast none", "implicit_integer_downcast", ("none",)),
        ("--distribution-strategy=nemo", "distribution_strategy", "llm-training"),
        ("--distribution-strategy=FSDP", "distribution_strategy", "fsdp"),
        ("--lnc=1", "lnc", 1),
        ("-lnc 1", "lnc", 1),
        ("-lnc=1", "lnc", 1),
        ("--logical-nc-config=1", "lnc", 1),
        ("-O1", "optlevel", 1),
        ("-O 3", "optlevel", 3),
        ("-O=3", "optlevel", 3),
        ("--optlevel=1", "optlevel", 1),
        ("--optlevel 3", "optlevel", 3),
        (
            "--disable-mixed-precision-accumulation",
            "enable_mixed_precision_accumulation",
            False,
        ),
        ("--enable-saturate-infinity", "enable_saturate_infinity", True),
        ("--enable-fast-context-switch", "enable_fast_context_switch", True),
        (
            "--enable-fast-loading-neuron-binaries",
            "enable_fast_loading_neuron_binaries",
            True,
        ),
        ("--logfile 'a b.txt'", "logfile", "a b.txt"),
        ("--output=x.neff", "output", "x.neff"),
        ("--verbose=debug", "verbose", 10),
        ("--verbose 35", "verbose", 35),
        ("--enable-experimental-O1", "optlevel", 1),
    ],
)
def test_each_option(flags: str, field: str, value: object) -> None:
    assert getattr(read(flags), field) == value


def test_right_most_wins() -> None:
    assert read("-O1 --optlevel=3 -O2 --optlevel 1").optlevel == 1
    flags = "--disable-mixed-precision-accumulation --enable-mixed-precision-accumulation"
    assert read(flags).enable_mixed_precision_accumulation
    assert (
        read("--auto-cast=all", ["--auto-cast=matmult"], {"auto_cast": "none"}).auto_cast == "none"
    )


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"auto_cast": "all"}, "auto_cast", "all"),
        ({"auto-cast": "all"}, "auto_cast", "all"),
        ({"--auto-cast": "all"}, "auto_cast", "all"),
        ({"optlevel": 3}, "optlevel", 3),
        ({"O": 1}, "optlevel", 1),
        ({"lnc": 1}, "lnc", 1),
        ({"logical_nc_config": "1"}, "lnc", 1),
        ({"enable_saturate_infinity": True}, "enable_saturate_infinity", True),
        (
            {"enable_mixed_precision_accumulation": False},
            "enable_mixed_precision_accumulation",
            False,
        ),
        (
            {"disable_mixed_precision_accumulation": True},
            "enable_mixed_precision_accumulation",
            False,
        ),
        (
            {"implicit_integer_downcast": ["scatter", "dot"]},
            "implicit_integer_downcast",
            ("dot", "scatter"),
        ),
        ({"verbose": 10}, "verbose", 10),
        ({"cache_dir": "/x"}, "wrapper", Wrapper(cache_dir="/x")),
        ({"cache-dir": "/x"}, "wrapper", Wrapper(cache_dir="/x")),
        ({"no_cache": True}, "wrapper", Wrapper(no_cache=True)),
        ({"internal_foo": True}, "recorded", (("--internal-foo", ""),)),
        ({"internal_foo": ["a", "b"]}, "recorded", (("--internal-foo", "a b"),)),
        ({"disable_dge": False}, "recorded", ()),
    ],
)
def test_options_by_name(options: dict[str, object], field: str, value: object) -> None:
    assert getattr(read(options), field) == value


def test_wrapper_flags_are_split_off() -> None:
    options = read(
        "--cache_dir=s3://b/p --no_cache --retry_failed_compilation --log_level=INFO -O1"
    )
    assert options.wrapper == Wrapper("s3://b/p", True, True, "INFO")  # noqa: FBT003
    assert options.canonical() == read("-O1").canonical()


def test_internal_options_are_recorded_in_order() -> None:
    options = read(
        "--tensorizer-options='--enable-ccop-compute-overlap --skip-pass=X' --internal-new=3 "
        "--internal-enable-dge-levels spill_reload vector_dynamic_offsets --lnc=2 --disable-dge "
        "--pipeline compile SaveTemps --internal-last"
    )
    assert options.recorded == (
        ("--tensorizer-options", "--enable-ccop-compute-overlap --skip-pass=X"),
        ("--internal-new", "3"),
        ("--internal-enable-dge-levels", "spill_reload vector_dynamic_offsets"),
        ("--disable-dge", ""),
        ("--pipeline", "compile SaveTemps"),
        ("--internal-last", ""),
    )


def test_the_line_that_distributed_inference_uses() -> None:
    options = read(
        "--auto-cast=none --model-type=transformer "
        "--tensorizer-options='--enable-ccop-compute-overlap --cc-pipeline-tiling-factor=2' "
        "--lnc=2 -O1 --internal-hlo2tensorizer-options="
        "'--verify-hlo=true --experimental-unsafe-fp8e4m3fn-as-fp8e4m3'"
    )
    assert (options.model_type, options.lnc, options.optlevel) == ("transformer", 2, 1)
    assert options.unsafe_fp8
    assert not read("--internal-hlo2tensorizer-options='--verify-hlo=true'").unsafe_fp8
    assert read("--experimental-unsafe-fp8e4m3fn-as-fp8e4m3").unsafe_fp8


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "--target=trn1 --lnc=2",
            (
                "[NCC_EARG001] --lnc=2 is not valid; allowed: 1 on trn1. Unsupported Logical "
                "Neuron Core (LNC) configuration: use 1, or a target that groups its cores like "
                "that."
            ),
        ),
        (
            "--target=trn9",
            (
                "--target=trn9 is not valid; allowed: trn1, inf2, trn1n, trn2, trn3, gen2, gen3, "
                "gen4. Name one of these."
            ),
        ),
        (
            "--auto-cast=some",
            "--auto-cast=some is not valid; allowed: none, matmult, all. Choose one of these.",
        ),
        ("-O4", "-O=4 is not valid; allowed: 1, 2, 3. Choose one of these."),
        (
            "--implicit-integer-downcast=dot,mul",
            (
                "--implicit-integer-downcast=dot,mul is not valid; allowed: default, all, none, or "
                "a list of dot, scatter, all_reduce, reduce_scatter, pow. Choose one of these."
            ),
        ),
        (
            "--implicit-integer-downcast=all,dot",
            (
                "--implicit-integer-downcast=all,dot is not valid; allowed: default, all, none, or "
                "a list of dot, scatter, all_reduce, reduce_scatter, pow. Choose one of these."
            ),
        ),
        (
            "--verbose=loud",
            (
                "--verbose=loud is not valid; allowed: debug, info, warning, error, critical, or a "
                "number. Choose one of these."
            ),
        ),
        ("--auto-cast", "--auto-cast is not valid; allowed: none, matmult, all. It needs a value."),
        (
            "--enable-saturate-infinity=1",
            (
                "--enable-saturate-infinity=1 is not valid; allowed: nothing: the option switches "
                "something on. Write it without a value."
            ),
        ),
        (
            "--autocast=all",
            (
                "--autocast=all is not valid; allowed: the documented options and --internal-.... "
                "Did you mean --auto-cast?"
            ),
        ),
        (
            "model.pb",
            (
                "model.pb is not valid; allowed: the documented options and --internal-.... See "
                "`neuronx-cc compile --help`."
            ),
        ),
        (
            "--logfile 'a",
            (
                'flags="--logfile \'a" is not valid; allowed: words as a shell reads them. Here: '
                "No closing quotation."
            ),
        ),
        (
            {"optlevel": 2.5},
            "optlevel=2.5 is not valid; allowed: 1, 2, 3. Give a value of that form.",
        ),
        (
            {"enable_saturate_infinity": "yes"},
            (
                "enable_saturate_infinity='yes' is not valid; allowed: True or False. Give a value "
                "of that form."
            ),
        ),
    ],
)
def test_error_texts(source: Source, text: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(text)}$"):
        read(source)


@pytest.mark.parametrize("target", ["trn1", "trn1n", "inf2"])
def test_two_cores_as_one_is_refused_before_trn2(target: str) -> None:
    with pytest.raises(OptionError, match="EARG001") as caught:
        read(f"--target={target} --logical-nc-config 2")
    assert caught.value.code == "NCC_EARG001"
    assert read(f"--target={target}").lnc == 1


def test_target_and_lnc_come_from_the_machine_unless_given() -> None:
    assert read(NEURON_PLATFORM_TARGET_OVERRIDE="gen2").target == "trn1"
    assert read("--target=trn3", NEURON_PLATFORM_TARGET_OVERRIDE="trn1").target == "trn3"
    assert read(NEURON_LOGICAL_NC_CONFIG="1").lnc == 1
    assert read(NEURON_RT_VIRTUAL_CORE_SIZE="1").lnc == 1
    with pytest.raises(OptionError, match="NEURON_PLATFORM_TARGET_OVERRIDE=abc is not valid"):
        read(NEURON_PLATFORM_TARGET_OVERRIDE="abc")
    with pytest.raises(OptionError, match=r"\[NCC_EARG001\] NEURON_LOGICAL_NC_CONFIG=2 is not"):
        read("--target=trn1", NEURON_LOGICAL_NC_CONFIG="2")
    with pytest.raises(OptionError, match="Compiler and runtime must agree; set both alike"):
        read("--lnc=1", NEURON_LOGICAL_NC_CONFIG="2")


def test_environment_then_torch_compile() -> None:
    environ = {"NEURON_CC_FLAGS": "--auto-cast=all -O1", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}
    options = from_environment({"optlevel": 3}, environ)
    assert (options.auto_cast, options.optlevel, options.target) == ("all", 3, "trn1")


def test_notes() -> None:
    assert read("--enable-experimental-O1").notes == (
        "--enable-experimental-O1 is deprecated; use -O1",
    )
    options = read("--target=trn1 --native-int64=enabled")
    assert options.notes == ("--native-int64=enabled has no effect: trn1 has no 64-bit integers",)
    assert not options.int64_is_native
    assert read("--native-int64=enabled").int64_is_native


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("-O1", "--optlevel=1", True),
        ("--auto-cast-type=fp16", "", True),  # without --auto-cast it says nothing
        ("--auto-cast=all --auto-cast-type=fp16", "--auto-cast=all", False),
        ("--native-int64=disabled", "--native-int64=default", True),
        ("--native-int64=enabled", "", False),
        ("--implicit-integer-downcast=all", "", True),
        ("--implicit-integer-downcast=none", "", False),
        ("--output=a --logfile=b --verbose=10", "", True),
        ("--enable-fast-loading-neuron-binaries", "", True),
        ("--num-parallel-jobs=4 --workdir=/x", "", True),
        ("--internal-anything", "", False),
        ("--lnc=1", "", False),
        ("--target=trn3", "", False),
        ("--model-type=transformer", "", False),
        ("--disable-mixed-precision-accumulation", "", False),
    ],
)
def test_key_depends_on_what_the_program_depends_on(one: str, other: str, same: bool) -> None:
    assert (read(one).canonical() == read(other).canonical()) is same


def flag_words() -> st.SearchStrategy[list[str]]:
    """Command lines of correct options."""

    def words(draw: Any) -> list[str]:
        flag = draw(st.sampled_from(FLAGS))
        name = draw(st.sampled_from(flag.names))
        match flag.value:
            case Value.ON | Value.OFF:
                return [name]
            case Value.CHOICE | Value.INT:
                value = draw(st.sampled_from(flag.choices))
            case Value.TARGET:
                value = draw(st.sampled_from(["trn2", "trn3", "gen3"]))
            case Value.LEVEL:
                value = draw(st.sampled_from(["debug", "info", "35"]))
            case Value.DOWNCASTS:
                value = ",".join(draw(st.sets(st.sampled_from(DOWNCASTS), min_size=1)))
            case _ if name in NUMBERS:
                value = draw(st.sampled_from(["512", "1024"]))
            case _:
                value = draw(st.text(alphabet="ab =-'\"é", max_size=5))
                return [f"{name}={value}"]
        return [name, value] if draw(st.booleans()) else [f"{name}={value}"]

    return st.lists(st.composite(words)(), max_size=6).map(
        lambda parts: list(chain.from_iterable(parts))
    )


@given(flag_words())
def test_flags_round_trip(words: list[str]) -> None:
    options = read(words)
    assert read(options.flags()) == options
    assert read(options.flags()).canonical() == options.canonical()


@given(st.lists(st.text(alphabet="-=Olncautocs123 '", max_size=10), max_size=4))
def test_any_words_are_options_or_an_error(words: list[str]) -> None:
    try:
        read(words)
    except OptionError as error:
        assert "is not valid; allowed:" in str(error)  # noqa: PT017


def test_the_table_is_consistent() -> None:
    assert len(BY_NAME) == sum(len(flag.names) for flag in FLAGS)
    for flag in FLAGS:
        assert flag.help
        assert flag.allowed
        assert (flag.status is Status.INTERNAL) == (not flag.field)
        assert bool(flag.choices) == (flag.value in {Value.CHOICE, Value.INT})


def test_the_documentation_names_every_documented_option() -> None:
    text = (Path(__file__).parents[2] / "docs" / "neff.md").read_text(encoding="utf-8")
    for flag in FLAGS:
        if flag.status in {Status.DOCUMENTED, Status.WRAPPER} and flag.value is not Value.OFF:
            assert f"`{flag.name}`" in text
            for choice in flag.choices:
                assert choice in text
