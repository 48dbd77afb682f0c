"""Laws of loading: what differs is enough, what is wrong is named, and a written tree reads back equal."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from dora_rl.core.errors import ConfigError
from dora_rl.core.struct_loader import Tree, build, override, to_dict, to_yaml
from dora_rl.core.yaml_text import load_yaml


class Control(Struct, frozen=True, kw_only=True):
    max_staleness: Annotated[int, Meta(ge=0)] = 2
    batch_groups: Annotated[int, Meta(gt=0, description="Groups in a train step.")] = 8
    schedule: Literal["dora", "sync"] = "dora"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.schedule == "sync" and self.max_staleness > 0:
            raise ConfigError("a sync run has no staleness", hint="set max_staleness=0")


class Fixed(Struct, frozen=True, kw_only=True, tag_field="kind", tag="fixed"):
    tokens: int = 100


class Lognormal(Struct, frozen=True, kw_only=True, tag_field="kind", tag="lognormal"):
    mean_tokens: float = 2300.0
    cap_tokens: int = 30_000

    def __post_init__(self) -> None:
        if self.cap_tokens < self.mean_tokens:
            raise ValueError("the cap is below the mean")


class Evaluation(Struct, frozen=True, kw_only=True):
    control: Control = Control(max_staleness=0)
    every_steps: int = 10


class Stage(Struct, frozen=True, kw_only=True):
    steps: int
    rate: float = 1.0


class Recipe(Struct, frozen=True, kw_only=True):
    seed: int = 0
    control: Control = Control(batch_groups=512)
    lengths: Annotated[Fixed | Lognormal, Meta(description="How long answers are.")] = Lognormal(
        cap_tokens=9_000
    )
    evaluation: Evaluation | None = None
    stages: tuple[Stage, ...] = ()
    named: dict[str, Stage] = {}


def resolve(tree: Tree, *assignments: str) -> Recipe:
    return build(Recipe, override(tree, assignments, Recipe), "recipe.yaml")


def refusal(tree: Tree, *assignments: str) -> tuple[str, str | None]:
    with pytest.raises(ConfigError) as caught:
        resolve(tree, *assignments)
    return caught.value.message.removeprefix("recipe.yaml: "), caught.value.hint


def test_an_empty_tree_is_the_defaults() -> None:
    assert resolve({}) == Recipe()


def test_a_section_keeps_the_defaults_its_parent_chose() -> None:
    assert resolve({"control": {"seed": 1}}).control == Control(seed=1, batch_groups=512)


def test_naming_the_default_member_keeps_its_defaults_and_another_starts_from_its_own() -> None:
    assert resolve({"lengths": {"mean_tokens": 5}}).lengths == Lognormal(mean_tokens=5, cap_tokens=9_000)
    assert resolve({"lengths": {"kind": "fixed"}}).lengths == Fixed()


def test_an_optional_section_is_switched_on_by_any_key_in_it() -> None:
    assert resolve({"evaluation": None}, "every_steps=3").evaluation == Evaluation(every_steps=3)
    assert resolve({}, "evaluation={}").evaluation == Evaluation()


def test_a_key_deep_in_an_absent_section_keeps_that_sections_defaults() -> None:
    evaluation = resolve({}, "evaluation.control.seed=4").evaluation
    assert evaluation == Evaluation(control=Control(max_staleness=0, seed=4))


@pytest.mark.parametrize("path", ["control.batch_groups", "lengths.mean_tokens", "mean_tokens"])
def test_a_unique_suffix_is_as_good_as_a_path(path: str) -> None:
    tree = to_dict(resolve({}, f"{path}=7"))
    assert 7 in (tree["control"]["batch_groups"], tree["lengths"]["mean_tokens"])


def test_a_full_path_wins_over_the_suffixes_it_also_is() -> None:
    assert resolve({}, "seed=5") == Recipe(seed=5)


def test_an_ambiguous_suffix_lists_its_candidates() -> None:
    assert refusal({}, "max_staleness=1") == (
        "key 'max_staleness' is ambiguous",
        "write 'control.max_staleness' or 'evaluation.control.max_staleness'",
    )


def test_override_leaves_the_tree_it_was_given_alone() -> None:
    tree: Tree = {"control": {"seed": 1}}
    override(tree, ["control.seed=2"], Recipe)
    assert tree == {"control": {"seed": 1}}


@pytest.mark.parametrize("order", [1, -1])
def test_setting_the_tag_switches_the_member_in_any_order(order: int) -> None:
    assignments = ["lengths.kind=fixed", "lengths.tokens=5"][::order]
    written = {"lengths": {"kind": "lognormal", "mean_tokens": 4}}
    assert resolve(written, *assignments).lengths == Fixed(tokens=5)


def test_a_key_of_another_member_names_that_member() -> None:
    assert refusal({}, "tokens=5") == (
        "key 'lengths.tokens' belongs to kind 'fixed', but 'lengths' is 'lognormal'",
        "also set lengths.kind=fixed",
    )


@pytest.mark.parametrize(
    ("tree", "message", "hint"),
    [
        (
            {"control": {"max_stalenes": 1}},
            "unknown key 'control.max_stalenes'",
            "did you mean 'control.max_staleness'?",
        ),
        (
            {"stages": [{"steps": 1, "rat": 2}]},
            "unknown key 'stages[0].rat'",
            "did you mean 'stages[0].rate'?",
        ),
        ({"control": {"seed": "a"}}, "'control.seed' cannot be 'a'", "expected int"),
        ({"control": {"max_staleness": -1}}, "'control.max_staleness' cannot be -1", "expected int >= 0"),
        ({"control": 3}, "'control' cannot be 3", "expected mapping"),
        ({"control": {"schedule": "sink"}}, "'control.schedule' cannot be 'sink'", "it is 'dora' or 'sync'"),
        ({"control": {"schedule": "sync"}}, "a sync run has no staleness", "set max_staleness=0"),
        ({"lengths": {"cap_tokens": 1}}, "section 'lengths': the cap is below the mean", None),
        (
            {"lengths": {"kind": "normal"}},
            "'lengths.kind' cannot be 'normal'",
            "it is 'fixed' or 'lognormal'",
        ),
        ({"stages": [{}]}, "key 'stages[0].steps' is missing", "it has no default: give it a value"),
        (
            {"named": {"warm": {"steps": "x"}}},
            "'named[...].steps' has a wrong value",
            "expected int, got str",
        ),
    ],
)
def test_a_mistake_in_a_tree_is_named_with_its_path_and_what_is_accepted(
    tree: Tree, message: str, hint: str | None
) -> None:
    assert refusal(tree) == (message, hint)


@pytest.mark.parametrize(
    ("assignment", "message", "hint"),
    [
        ("control.seed", "override 'control.seed' assigns nothing", "write it as path=value"),
        ("mean_token=1", "unknown key 'mean_token'", "did you mean 'lengths.mean_tokens'?"),
        ("lenths.mean_tokens=1", "unknown key 'lenths.mean_tokens'", "did you mean 'lengths.mean_tokens'?"),
        ("control.seed=[", "the value of override 'control.seed=[' is not valid YAML", "quote it"),
    ],
)
def test_a_mistake_in_an_override_is_named(assignment: str, message: str, hint: str) -> None:
    assert refusal({}, assignment) == (message, hint)


def test_an_error_names_its_source() -> None:
    with pytest.raises(ConfigError, match=r"^mine\.yaml: unknown key 'x'"):
        build(Recipe, {"x": 1}, "mine.yaml")


@pytest.mark.parametrize(("text", "value"), [("1e-6", 1e-6), ("5E3", 5e3), (".5e1", 5.0), ("2", 2.0)])
def test_numbers_are_read_as_people_write_them(text: str, value: float) -> None:
    assert resolve({}, f"stages=[{{steps: 1, rate: {text}}}]").stages[0].rate == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("a: 1\na: 2\n", "key 'a' is repeated"), ("a: [", "not valid YAML"), ("- a\n", "not a mapping")],
)
def test_a_file_that_is_not_a_recipe_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load_yaml(path)


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"a: 1\nb: 2\na: 3\n", "is not valid YAML: line 3, column 1: key 'a' is repeated", "write it once"),
        (b"a:\n\tb: 2\n", "line 2, column 1: found character '\\t' that cannot start any token", "spaces"),
        (b"a: b\n  c: [1,\n", "line 2, column 4: mapping values are not allowed here", "one column"),
        (b'{"prompt": "a"}\n{"prompt": "b"}\n', "line 2, column 1: expected", "a recipe is lines"),
        (b"\x80\x81", "is not text in UTF-8: byte 0x80 at position 0", "a recipe is lines"),
    ],
)
def test_a_mistake_in_yaml_is_one_line_with_its_place(
    tmp_path: Path, content: bytes, message: str, hint: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_yaml(path)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_missing_file_is_refused_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_yaml(tmp_path / "absent.yaml")
    (tmp_path / "empty.yaml").touch()
    assert load_yaml(tmp_path / "empty.yaml") == {}


controls = st.builds(
    Control, max_staleness=st.integers(0, 9), batch_groups=st.integers(1), seed=st.integers()
)
recipes = st.builds(
    Recipe,
    control=controls,
    lengths=st.builds(Fixed) | st.builds(Lognormal, mean_tokens=st.floats(0, 1e4)),
    evaluation=st.none() | st.builds(Evaluation, control=controls),
    stages=st.lists(st.builds(Stage, rate=st.floats(allow_nan=False))).map(tuple),
    named=st.dictionaries(st.text("abc", min_size=1), st.builds(Stage)),
)


@given(recipes)
def test_what_is_written_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe) -> None:
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(to_yaml(recipe), encoding="utf-8")
    assert resolve(load_yaml(path)) == recipe
