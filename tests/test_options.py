"""options: names, values, environment, the text that travels with the op."""

import dataclasses
import typing
from collections.abc import Callable

import pytest
from typing_extensions import Unpack

import gdpa_inductor
from gdpa_inductor import GDPAPass, OptionValues, options
from gdpa_inductor.options import KERNELS, Kernel, KernelOptions, Options, check_names, split


def test_defaults() -> None:
    assert Options.make() == Options.make({}) == Options()
    assert str(Options().kernel_options) == ""


@pytest.mark.parametrize("prefix", ["", "gdpa."])
@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("kernel", "reference", "reference"),
        ("deterministic", False, False),
        ("fast_math", "0", False),
        ("skip", "false", False),
        ("strict", "yes", True),
        ("expect", 3, 3),
        ("expect", "0", 0),
        ("expect", None, None),
        ("verify", "True", True),
        ("profit", "no", False),
        ("profit", "Memory", "memory"),
        ("fp32_scores", "1", True),
        ("prove", "1", True),
    ],
)
def test_values(prefix: str, name: str, option: object, value: object) -> None:
    assert getattr(Options.make({prefix + name: option}), name) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gdpa.strikt": True}, r"unknown option gdpa\.strikt; did you mean gdpa\.strict\?"),
        ({"gdpa.fastmath": True}, r"did you mean gdpa\.fast_math\?"),
        ({"gdpa.zzz": True}, r"unknown option gdpa\.zzz \(known: deterministic, expect"),
        (
            {"kernel": "cuda"},
            "gdpa.kernel must be one of auto, cute, triton, cpu, chunked, reference, not 'cuda'",
        ),
        ({"expect": -1}, "gdpa.expect must be a count"),
        ({"expect": True}, "gdpa.expect must be a count of regions or None, not True"),
        ({"expect": "²"}, "gdpa.expect must be a count"),
        ({"expect": 1.0}, "gdpa.expect must be a count"),
        ({"strict": 0}, "gdpa.strict must be true or false, not 0"),
        ({"prove": "later"}, "gdpa.prove must be true or false, not 'later'"),
        ({"strict": None}, "gdpa.strict must be true or false, not None"),
        ({"strict": 2}, "gdpa.strict must be true or false, not 2"),
        ({"strict": "perhaps"}, "gdpa.strict must be true or false"),
        ({"strict": "memory"}, "gdpa.strict must be true or false, not 'memory'"),
        ({"profit": "time"}, "gdpa.profit must be true or false or 'memory', not 'time'"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options.make(options)


@pytest.mark.parametrize("cls", [Options, KernelOptions])
def test_values_are_converted_however_options_are_made(cls: type[KernelOptions]) -> None:
    assert cls(strict="False", fast_math="0") == cls(strict=False, fast_math=False)
    assert cls(strict="False").strict is False
    with pytest.raises(ValueError, match=r"gdpa\.skip must be true or false, not 'perhaps'"):
        cls(skip="perhaps")
    with pytest.raises(ValueError, match=r"gdpa\.kernel must be one of auto, .*, not None"):
        cls(kernel=None)


def test_the_typed_keywords_are_the_options() -> None:
    assert typing.get_type_hints(OptionValues) == typing.get_type_hints(Options)
    assert typing.get_args(Kernel) == KERNELS
    assert OptionValues.__required_keys__ == frozenset()


@pytest.mark.parametrize(
    "function", [gdpa_inductor.explain, gdpa_inductor.rewrite, GDPAPass.__init__]
)
def test_functions_with_options_have_typed_keywords(function: Callable[..., object]) -> None:
    assert typing.get_type_hints(function)["options"] == Unpack[OptionValues]


def test_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDPA_STRICT", "1")
    monkeypatch.setenv("GDPA_EXPECT", "2")
    assert Options.make() == Options(strict=True, expect=2)
    assert Options.make({"gdpa.expect": 1}) == Options(strict=True, expect=1)
    monkeypatch.setenv("GDPA_KERNEL", "cuda")
    with pytest.raises(ValueError, match=r"gdpa.kernel"):
        Options.make()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [("GDPA_STRCT", "; did you mean GDPA_STRICT?"), ("GDPA_XYZZY", "")],
)
def test_an_unknown_variable_of_the_environment_is_warned_of_once(
    variable: str, hint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(variable, "1")
    options._warn_of.cache_clear()
    assert Options.make() == Options.make() == Options()
    text = f"the environment sets {variable}, which is no option of gdpa_inductor{hint}"
    assert [record.getMessage() for record in caplog.records] == [text]


INDUCTORS = ("max_autotune", "triton.cudagraphs", "epilogue_fusion")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("strict", "; did you mean 'gdpa.strict'?"),
        ("exepct", "; did you mean 'gdpa.expect'?"),
        ("max_autotuen", "; did you mean 'max_autotune'?"),
        ("xyzzy", ""),
    ],
)
def test_an_option_of_nobody_is_told_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(ValueError) as raised:
        check_names({"max-autotune": True, name: True}, INDUCTORS)
    message = f"neither gdpa_inductor nor Inductor has an option {name!r}{hint}"
    assert str(raised.value) == message


def test_the_text_of_the_kernels_options_is_read_back() -> None:
    for kernel in KERNELS:
        for bits in range(8):
            flags = [bool(bits >> i & 1) for i in range(3)]
            options = KernelOptions(kernel, *flags)
            assert KernelOptions.parse(str(options)) == options
    assert str(KernelOptions(fast_math=False, kernel="cpu")) == "kernel=cpu,fast_math=False"


def test_all_that_kernels_may_know_travels() -> None:
    options = Options(kernel="cpu", deterministic=False, fast_math=False, strict=True, profit=False)
    names = [f.name for f in dataclasses.fields(KernelOptions)]
    for name in names:
        assert getattr(options.kernel_options, name) == getattr(options, name)


def test_split() -> None:
    ours, theirs = split({"gdpa.strict": True, "max_autotune": True, "triton.cudagraphs": False})
    assert ours == {"gdpa.strict": True}
    assert theirs == {"max_autotune": True, "triton.cudagraphs": False}
    assert split(None) == ({}, {})
