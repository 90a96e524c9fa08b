"""Which modules are layers, from what each takes and returns."""

import pytest

from esprof.analyzers.advisors.parallel.recorded.chain import Chain, ModuleCall, ModuleSize, obstacle


def call(name, *inner):
    return ModuleCall(name, 0, 1, inner)


def sizes(**sources):
    """Sizes of modules: `name=inputs`, or `name=(inputs, outputs)`; names are letters, a parameter has 10 bytes."""
    found = {}
    for name, given in sources.items():
        inputs, outputs = given if isinstance(given, tuple) else (given, "")
        found[name] = ModuleSize(
            parameter_bytes=10, output_bytes=1, inputs=frozenset(inputs), outputs=frozenset(outputs or "")
        )
    return found


def parts(root, of):
    return [("".join(part.names), part.parameter_bytes) for part in Chain(root, of).parts]


CHAIN = call("m", call("a"), call("b"), call("c"))


def test_modules_in_one_line_are_layers():
    assert parts(CHAIN, sizes(m=("", "c"), a="", b="a", c="b")) == [("a", 10), ("b", 10), ("c", 10)]


def test_what_begins_with_the_data_is_one_layer():
    assert parts(CHAIN, sizes(m=("", "c"), a="", b="", c="ab")) == [("m", 10)]
    longer = call("m", *CHAIN.inner, call("d"))
    assert parts(longer, sizes(m=("", "d"), a="", b="", c="ab", d="c")) == [("abc", 30), ("d", 10)]


def test_a_block_with_a_bypass_is_one_layer_and_others_are_divided():
    root = call("m", call("x", call("a"), call("b")), call("y", call("c"), call("d")), call("e"))
    # y returns d, and what it takes; x returns b only.
    of = sizes(m=("", "e"), x=("", "b"), a="", b="a", y=("bx", "dbx"), c="bx", d="c", e="y")
    assert parts(root, of) == [("a", 10), ("b", 10), ("y", 10), ("e", 10)]


def test_a_wrapper_is_no_layer_and_its_parameters_count_in_the_first():
    of = sizes(w=("", "cm"), m=("", "c"), a="", b="a", c="b")
    of["m"] = ModuleSize(own_bytes=3, parameter_bytes=40, output_bytes=1, outputs=frozenset("c"))
    of["w"] = ModuleSize(parameter_bytes=40, output_bytes=1, outputs=frozenset("cm"))
    # 3 bytes of its own, 7 of a module that is not called
    assert parts(call("w", CHAIN), of) == [("a", 20), ("b", 10), ("c", 10)]


def test_parameters_of_several_layers_are_told():
    of = sizes(m=("", "c"), a="", b="a", c="b")
    of["m"] = ModuleSize(own_bytes=5, parameter_bytes=25, output_bytes=1, outputs=frozenset("c"))
    chain = Chain(CHAIN, of)
    assert chain.shared_bytes == 10
    assert [part.parameter_bytes for part in chain.parts] == [15, 10, 10]


def test_an_activation_that_is_called_again_is_an_operation():
    root = call("m", call("a"), call("r"), call("b"), call("r"), call("c"))
    of = sizes(m=("", "c"), a="", r="a", b="r", c="b")
    assert "r is" not in obstacle(root, of | {"r": ModuleSize(parameter_bytes=0, output_bytes=1)})
    of["r"] = ModuleSize(parameter_bytes=0, output_bytes=1, inputs=frozenset("a"))
    assert parts(root, of) == [("a", 10), ("b", 10), ("c", 10)]


@pytest.mark.parametrize(
    ("root", "of", "reason"),
    [
        (call("m"), sizes(m=""), "no module in m was recorded"),
        (call("m", call("a"), call("a")), sizes(m="", a=""), "a has parameters and is called twice"),
        (CHAIN, sizes(m=("", "c"), a="", b="", c="ab"), "c uses a and b"),
        (call("m", call("a"), call("b")), sizes(m=("", "ab"), a="", b=""), "m has branches"),
    ],
)
def test_why_a_model_is_no_chain(root, of, reason):
    assert len(Chain(root, of).parts) == 1
    assert obstacle(root, of) == reason


def test_unknown_sources_divide_nothing():
    of = sizes(m=("", "c"), a="", b="a", c="b")
    of["b"] = ModuleSize(parameter_bytes=1, output_bytes=1, inputs=None)
    assert len(Chain(CHAIN, of).parts) == 1
    assert obstacle(CHAIN, of) == "the inputs of its modules are unknown"
