"""Fine-tuning with Ray Train and Hugging Face Accelerate, on Kubernetes or one machine.

from pipeline import Config, train
result = train(Config(training={"epochs": 1}))
"""

from typing import TYPE_CHECKING, Any

from pipeline.config import Config
from pipeline.errors import PipelineError, RunError, UserError

if TYPE_CHECKING:
    from pipeline.custom import Context
    from pipeline.launch import check, train
    from pipeline.result import Result

__all__ = ["Config", "Context", "PipelineError", "Result", "RunError", "UserError", "check", "train"]


def __getattr__(name: str) -> Any:
    # Ray and torch take seconds to import; who only reads a configuration does not pay for them.
    if name in ("check", "train"):
        from pipeline import launch

        return getattr(launch, name)
    if name == "Context":
        from pipeline.custom import Context

        return Context
    if name == "Result":
        from pipeline.result import Result

        return Result
    raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
