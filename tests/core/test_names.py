"""One vocabulary: a class name has one meaning, a seam is used, a docstring says something."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dora_rl

SOURCE = Path(dora_rl.__file__).parent
TREES = {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in TREES.items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def annotations(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            yield node.returns


def words_in(annotation: ast.expr) -> Iterator[str]:
    """Names in an annotation, also in one that is written as a string."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value)


def bases(node: ast.ClassDef) -> set[str]:
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return {base.id for base in plain if isinstance(base, ast.Name)}


def texts(tree: ast.Module) -> Iterator[str]:
    """Docstrings of modules, classes, functions, fields and constants."""
    for node in ast.walk(tree):
        for each in node.body if isinstance(node, Documented) else ():
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text


def test_no_class_name_has_two_definitions() -> None:
    counted = Counter(node.name for _, node in classes())
    assert [(path, node.name) for path, node in classes() if counted[node.name] > 1] == []


def test_every_protocol_is_what_somebody_asks_for() -> None:
    asked = {word for tree in TREES.values() for each in annotations(tree) for word in words_in(each)}
    protocols = {node.name: bases(node) for _, node in classes() if "Protocol" in bases(node)}
    # What a larger protocol consists of is asked for with it.
    asked.update(*protocols.values())
    assert protocols.keys() - asked == set()


def test_a_docstring_has_three_words_or_more() -> None:
    short = [(path, text) for path, tree in TREES.items() for text in texts(tree) if len(text.split()) < 3]
    assert short == []


def test_no_module_is_named_for_an_activity() -> None:
    named = {path for path in TREES if Path(path).stem.endswith("ing")}
    # `launch` is for others to build on: its names stay.
    assert {path for path in named if not path.startswith("launch/")} == set()
