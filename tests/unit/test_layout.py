"""The rules of the house that a machine can hold (CONTRIBUTING.md)."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "pipeline"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = [path for path in sorted((REPOSITORY / "tests").rglob("test_*.py")) if "node" not in path.parts]
LOCKS = sorted((REPOSITORY / "requirements").glob("*.lock"))
OURS = [path for path in LOCKS if path.name != "old-ray.lock"]

# Everything else runs, and is tested, without a cluster.
IMPORTS_RAY = {"cluster.py", "fit.py", "worker.py", "reporter.py", "data/ray_engine.py"}
MOST_LINES = 300


def imported(path: Path) -> Iterator[str]:
    """The top-level packages that a module imports anywhere, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def checks(function: ast.FunctionDef, local: dict[str, ast.FunctionDef], seen: frozenset[str] = frozenset()) -> bool:
    """Whether a test asserts something, itself or in a function of its module that it calls."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("raises", "fail", "warns") or called.startswith("assert_"):
                return True
            if called in local and called not in seen and checks(local[called], local, seen | {called}):
                return True
    return False


def test_modules_are_short_enough_to_read_at_one_go() -> None:
    ours = [path for name in ("pipeline", "tests", "bench", "examples") for path in (REPOSITORY / name).rglob("*.py")]
    lines = {path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines()) for path in ours}
    assert len(lines) > 150
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_only_the_driver_the_worker_and_what_talks_to_ray_import_it() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path in MODULES if "ray" in imported(path)}
    assert found <= IMPORTS_RAY


def test_only_kube_imports_the_kubernetes_client() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path in MODULES if "kubernetes" in imported(path)}
    assert {path for path in found if not path.startswith("kube/")} == set()


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert {path.stem for path in [*MODULES, *TESTS]} & drawers == set()


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_file_has_a_hash_for_everything_and_no_address(path: Path) -> None:
    text = path.read_text()
    requirements = [line for line in text.replace("\\\n", " ").splitlines() if re.match(r"[A-Za-z0-9]", line)]
    assert requirements
    assert [line.split()[0] for line in requirements if "==" not in line or "--hash=sha256:" not in line] == []
    assert re.findall(r"\S*://\S*|^-.*index.*|^\S+ @ .*", text, re.MULTILINE) == []


def test_the_lock_files_agree_on_every_version() -> None:
    versions: dict[str, set[str]] = {}
    for path in OURS:
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", path.read_text(), re.MULTILINE):
            versions.setdefault(name, set()).add(version)
    # One package may have several versions for several platforms, but then all files have the same ones.
    differing = {name for name in versions if len({_pins(path, name) for path in OURS if _pins(path, name)}) > 1}
    assert differing == set()


def test_the_lock_files_hold_all_that_the_project_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = {
        "runtime.lock": project["dependencies"],
        "deepspeed.lock": [*project["dependencies"], *extras["deepspeed"]],
        "demo.lock": [*project["dependencies"], *extras["demo"]],
        "dev.lock": [*project["dependencies"], *extras["demo"], *extras["deepspeed"], *extras["kube"], *extras["dev"]],
    }
    for name, lines in asked.items():
        for requirement in map(Requirement, lines):
            pins = _pins(REPOSITORY / "requirements" / name, canonicalize_name(requirement.name))
            assert any(requirement.specifier.contains(pin) for pin in pins), (
                f"{name} lacks {requirement}; run: make lock"
            )


def test_the_package_imports_all_that_it_brings_into_an_image() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    used = {package for path in MODULES for package in imported(path)}
    modules: dict[str, set[str]] = {}
    for module, names in packages_distributions().items():
        for name in names:
            modules.setdefault(canonicalize_name(name), set()).add(module)
    brought = [canonicalize_name(Requirement(line).name) for line in project["dependencies"]]
    assert len(brought) > 15
    assert [name for name in brought if not modules[name] & used] == []


def _pins(path: Path, name: str) -> frozenset[str]:
    return frozenset(re.findall(rf"^{re.escape(name)}==(\S+)", path.read_text(), re.MULTILINE))


def test_the_tree_in_the_readme_is_the_tree() -> None:
    missing = [name for name in tree((REPOSITORY / "README.md").read_text()) if not list(REPOSITORY.glob(name))]
    assert missing == []


def tree(text: str) -> list[str]:
    """The paths of the first fenced block that has a line for `pipeline/`.

    Each line is a path, indented (with or without drawn branches) below the folder that holds it, and a description
    after it; `{a,b}` stands for several names.
    """
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        plain = re.sub("[│├└─]", " ", block)
        if re.search(r"^ *pipeline/(?:\s|$)", plain, re.MULTILINE):
            return list(_paths(plain))
    return []


def _paths(block: str) -> Iterator[str]:
    folders: list[tuple[int, str]] = []
    for line in filter(str.strip, block.splitlines()):
        indent, part = len(line) - len(line.lstrip()), line.split()[0]
        folders = [(depth, folder) for depth, folder in folders if depth < indent]
        for name in _braces(part):
            yield "".join(folder for _, folder in folders) + name.rstrip("/")
        if part.endswith("/"):
            folders.append((indent, part))


def _braces(name: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", name)
    if not found:
        return [name]
    return [
        inner for word in found[1].split(",") for inner in _braces(name[: found.start()] + word + name[found.end() :])
    ]


@pytest.mark.parametrize(
    "drawn",
    [
        "README.md   what\npipeline/\n  config.py   models\n  data/  rows\n    {a,b}.py  x\nMakefile\n",
        "├── README.md  # what\n├── pipeline/\n│   ├── config.py\n│   └── data/\n│       └── {a,b}.py\n└── Makefile\n",
    ],
)
def test_a_tree_is_read_as_it_is_drawn(drawn: str) -> None:
    below = ["pipeline", "pipeline/config.py", "pipeline/data", "pipeline/data/a.py", "pipeline/data/b.py"]
    assert tree(f"# x\n```sh\nmake\n```\n```\n{drawn}```\n") == ["README.md", *below, "Makefile"]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_test_asserts_something(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    tests = [node for name, node in functions.items() if name.startswith("test_")]
    assert [node.name for node in tests if not checks(node, functions)] == []
