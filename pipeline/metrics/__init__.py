"""What is measured on the validation rows: our own `evaluate` metrics, and a user's.

`evaluate` takes seconds to import; only `Scorer` does so, when it is built.
"""

from pipeline.metrics.names import best_of, check_names, default_names, names_of
from pipeline.metrics.scorer import Scorer, check_modules

__all__ = ["Scorer", "best_of", "check_modules", "check_names", "default_names", "names_of"]
