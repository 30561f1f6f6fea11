"""Every message that the code can tell a user, with `…` where a value stands: what docs/errors.md has rows for."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "pipeline"
ERRORS = {"UserError", "RunError", "WorkerFailed", "StorageError", "Superseded", "Conflict", "Unreachable"}
# Lists of problems that are raised, or reported, elsewhere, and the functions that give parts of them.
COLLECT = {"note": 1, "append": 0, "fail": 0}
LISTS = {"problems", "found", "wrong", "said"}
GIVERS = {
    "problem",
    "problems",
    "check_names",
    "_improper",
    "_explain",
    "_expected",
    "differences",
    "_cause",
    "_wrong",
    "explain",
}
MODELS = {"config.py", "strategy_config.py"}  # whose ValueErrors pydantic tells
TABLE = "MEANING"  # what a store's error codes mean
PLACE = "…"


def messages() -> dict[str, str]:
    """Skeletons of all messages, each with the module that has it first."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ast.parse(path.read_text())
        constants = {ast.unparse(node.targets[0]): node.value for node in module.body if isinstance(node, ast.Assign)}
        table = constants.get(TABLE)
        for value in table.values if isinstance(table, ast.Dict) else []:
            literal = constants[value.id] if isinstance(value, ast.Name) else value
            found.setdefault(ast.literal_eval(literal), path.relative_to(PACKAGE).as_posix())
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef):
                for text in _of(node, ERRORS | ({"ValueError"} if path.name in MODELS else set())):
                    found.setdefault(text, path.relative_to(PACKAGE).as_posix())
    return found


def plain(text: str) -> str:
    """A skeleton in the one spelling in which two are compared."""
    return re.sub(rf"\s*({PLACE}\s*)+", PLACE, " ".join(text.split()))


def _of(function: ast.FunctionDef, errors: set[str]) -> Iterator[str]:
    local: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    local.setdefault(target.id, []).append(node.value)
    for node in ast.walk(function):
        for value in _told(node, function.name, errors):
            for text in _texts(value, local, 0):
                if len(re.findall(r"[a-z]{2,}", text)) > 1:
                    yield re.sub(rf"{PLACE}+", PLACE, " ".join(text.split()))


def _told(node: ast.AST, function: str, errors: set[str]) -> Iterator[ast.expr]:
    """The expressions in a node that are told to a user."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in errors:
            yield from node.args
        elif name in COLLECT and isinstance(node.func, ast.Attribute) and len(node.args) > COLLECT[name]:
            owner = ast.unparse(node.func.value).rpartition(".")[2]
            if name != "append" or owner in LISTS:
                yield node.args[COLLECT[name]]
    elif isinstance(node, ast.Yield | ast.Return) and node.value is not None and function in GIVERS:
        yield node.value


def _texts(node: ast.expr, local: dict[str, list[ast.expr]], depth: int) -> Iterator[str]:
    if depth > 4:
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else PLACE for part in node.values)
    elif isinstance(node, ast.Name):
        for value in local.get(node.id, []):
            yield from _texts(value, local, depth + 1)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, local, depth)
        yield from _texts(node.orelse, local, depth)
    elif isinstance(node, ast.Starred):
        yield from _texts(node.value, local, depth)
    elif isinstance(node, ast.GeneratorExp | ast.ListComp):
        yield from _texts(node.elt, local, depth)
    elif isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from _texts(each, local, depth)
