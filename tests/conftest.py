"""For all tests: Hypothesis draws the same examples in every run, and nothing is left in the user's cache."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("same in every run", derandomize=True, database=None, deadline=None, print_blob=True)
settings.load_profile("same in every run")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if "PIPELINE_CACHE_DIR" not in os.environ:
            patch.setenv("PIPELINE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
