"""Which artifacts are built, in which order, and what is refused."""

import pytest

from puffrun.artifacts.graph import select_artifacts
from puffrun.config import ArtifactSpec
from puffrun.errors import UsageError


def spec(name: str, *needs: str, **fields) -> ArtifactSpec:
    return ArtifactSpec(name, **{"cmd": ("true",), "outputs": ("out",), "needs": needs, **fields})


DIAMOND = (
    spec("top", "left", "right"),
    spec("right", "base"),
    spec("left", "base"),
    spec("base"),
    spec("other"),
)


def test_needs_come_first():
    names = [s.name for s in select_artifacts(DIAMOND, None)]
    assert sorted(names) == ["base", "left", "other", "right", "top"]
    for s in DIAMOND:
        assert all(names.index(need) < names.index(s.name) for need in s.needs)


def test_a_name_brings_what_it_needs_and_no_more():
    assert {s.name for s in select_artifacts(DIAMOND, ["left"])} == {"base", "left"}
    assert select_artifacts(DIAMOND, []) == ()


@pytest.mark.parametrize(
    ("specs", "names", "message", "hint"),
    [
        (DIAMOND, ["lfet"], "there is no artifact `lfet`", "did you mean `left`?"),
        (DIAMOND, ["zzz"], "there is no artifact `zzz`", "known are `base`"),
        ((), ["x"], "there is no artifact `x`", "none is configured"),
        ((spec("a", "bse"), spec("base")), None, "`a` needs `bse`", "`base`"),
        ((spec("a", "b"), spec("b", "c"), spec("c", "a")), None, "circle: ", "needs"),
        ((spec("a", "a"),), None, "circle: a → a", "needs"),
        ((spec("a", probe=("troch",)),), None, "no probe `troch`", "`torch`"),
        ((spec("a", cmd=()),), None, "`a` has no command", "cmd"),
        ((spec("a", outputs=()),), None, "`a` names no outputs", "outputs"),
        ((spec("a", outputs=("../x",)),), None, "`../x` is not a relative path", "{out}"),
        ((spec("a", outputs=("/x",)),), None, "`/x` is not a relative path", "{out}"),
        ((spec("a", outputs=(".",)),), None, "`.` is not a relative path", "{out}"),
        ((spec("a", install=(("out", "/bin/x"),)),), None, "`/bin/x` is not", "config"),
        ((spec("a", install=(("ot", "x"),)),), None, "installs `ot`", "`out`"),
        ((spec("a", cmd=("{artifact:b}/x",)), spec("b")), None, "{artifact:b}", "none"),
        ((spec("a-b"), spec("a_b")), None, "`a-b` and `a_b` are both $PUFFRUN", "rename"),
        (
            (spec("a", mode="inplace"), spec("b", install=(("out", "out"),))),
            None,
            "`a` and `b` both write `out`",
            "another name",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(specs, names, message: str, hint: str):
    with pytest.raises(UsageError) as caught:
        select_artifacts(specs, names)
    assert message in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message
