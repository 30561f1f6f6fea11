"""The function that `run.train_func` names: found, and looked at before any worker is asked for."""

import importlib
import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pipeline.errors import UserError

EXPECTED = "expected package.module:function, a function of one argument that can be imported here"


def resolve(address: str) -> Callable[[Any], None]:
    """The function at `package.module:function`, looked for in the current folder too; docs/migration.md.

    Raises:
        UserError: it cannot be imported, is not there, or is no Python function of one argument, which ends when it
            has trained.
    """
    found = f"run.train_func: found {address!r}"
    module_name, _, name = address.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):  # not into `check --json`
            module = importlib.import_module(module_name)
            function = getattr(module, name, None)  # a module's __getattr__ is the user's code as well
    except BaseException as error:
        words = (str(error).strip().splitlines() or [""])[0]
        raise UserError(f"{found}, {EXPECTED}; {type(error).__name__}: {words}") from error
    if function is None:
        raise UserError(f"{found}, {EXPECTED}; {module_name} has no {name}")
    if kind := _unfit(function):
        raise UserError(f"{found}, {EXPECTED}; {name} is {kind}, whose call would train nothing")
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as error:
        raise UserError(f"{found}, {EXPECTED}; {name} does not take one argument, the context") from error
    return function  # type: ignore[no-any-return]


def _unfit(function: Any) -> str | None:
    """What an object is that would not train when it is called; None for a function."""
    if inspect.isclass(function):
        return "a class"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "an async function"
    if inspect.isgeneratorfunction(function):
        return "a generator function"
    if inspect.isbuiltin(function):
        return "built into Python"
    return None if callable(function) else f"of type {type(function).__name__}"
