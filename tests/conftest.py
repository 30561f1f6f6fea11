"""For all tests: Hypothesis draws the same examples in every run, so that a failure can be repeated by anyone."""

from hypothesis import settings

settings.register_profile("same in every run", derandomize=True, database=None, deadline=None, print_blob=True)
settings.load_profile("same in every run")
