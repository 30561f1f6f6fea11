"""One cluster for the session, one namespace for each test, and a report of everything in it when a test fails."""

import re
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import cluster as clusters
from tests.e2e import engine, images
from tests.e2e.cluster import Cluster
from tests.e2e.command import Tools
from tests.e2e.lab import Lab
from tests.e2e.unbroken import Unbroken, finished_run

# Longer than any sum of waits in a test; each wait has a deadline of its own.
TEST_SECONDS = 1800
_figures: list[str] = []
_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-cluster", action="store_true", help="leave cluster and engine running, for the next call")
    parser.addoption("--image", help="with KUBECONFIG set: the pipeline image that its nodes can pull")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not item.get_closest_marker("timeout"):
            # Without the fixtures, which may build Kubernetes.
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _figures:
        terminalreporter.section("figures of the end-to-end tests")
        for line in _figures:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figure() -> Any:
    """Keep a measured time, to be printed at the end: `figure("apply to first step", 61.3)`."""

    def keep(what: str, seconds: float) -> None:
        _figures.append(f"{what}: {seconds:.1f} s")

    return keep


@pytest.fixture(scope="session")
def tools(request: pytest.FixtureRequest) -> Iterator[Tools]:
    """The engine, running, and the programs to drive it."""
    if clusters.existing_is_given():
        yield Tools(engine.cache_folder() / "tools")
        return
    # A call that is told to end is to clean up as after Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    tools = engine.tools_with_docker()
    engine.install_packages()
    engine.start(tools)
    try:
        images.link_programs(tools)
        yield tools
    finally:
        signal.signal(signal.SIGTERM, before)
        if engine.is_our_own(tools) and not _kept(request):
            engine.stop()


@pytest.fixture(scope="session")
def cluster(tools: Tools, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes with the operator and the image under test."""
    if clusters.existing_is_given():
        yield clusters.existing(tools, request.config.getoption("--image", default=None))
        return
    try:
        yield clusters.create(tools, images.node_image(tools), reuse=_kept(request))
    finally:
        if _kept(request):
            folder = engine.cache_folder()
            print(f"\nkept: KUBECONFIG={folder}/kubeconfig DOCKER_HOST={tools.environment.get('DOCKER_HOST', '')}")
        else:
            clusters.delete(tools)


def _kept(request: pytest.FixtureRequest) -> bool:
    # The option is not there when pytest met this file only while it collected `tests`.
    return bool(request.config.getoption("--keep-cluster", default=False))


@pytest.fixture
def lab(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """An empty namespace of this test's own; `documents` and `apply` fill it."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40].strip("-")
    lab = Lab(cluster, f"{name}-{secrets.token_hex(3)}")
    yield lab
    if request.node.stash.get(_failed, False):
        print(lab.dump(), file=sys.stderr)
    lab.delete()


@pytest.fixture(scope="session")
def unbroken(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, figure: Any) -> Unbroken:
    """A run that nothing happens to: what every disturbed one is to end like."""
    lab = Lab(cluster, "unbroken")
    try:
        run = finished_run(lab, tmp_path_factory.mktemp("export") / "model")
    except BaseException:
        print(lab.dump(), file=sys.stderr)
        lab.delete()
        raise
    figure("from kubectl apply to the first training step", run.seconds_to_first_step)
    figure("from kubectl apply to the finished RayJob", run.seconds)
    lab.delete()
    return run
