"""python -m bench.padding: the share of padding on Banking77, in batches by length and in batches of random rows."""

from pipeline.config import Config
from pipeline.data.engine import train_plan
from pipeline.data.inspect import inspect
from pipeline.data.torch_engine import index_of, tokenised


def padding_ratio(bucket_batches: int, epoch: int = 0) -> float:
    """Padding tokens of all tokens of an epoch of the default job on its two workers."""
    config = Config.model_validate({"data": {"bucket_batches": bucket_batches, "engine": "torch"}})
    index = index_of(tokenised(config, inspect(config), "train"))
    plan = train_plan(config, index, config.scaling.workers)
    steps = [plan.step(epoch * plan.steps_per_epoch + step) for step in range(plan.steps_per_epoch)]
    return 1 - sum(step.tokens for step in steps) / sum(step.padded_tokens for step in steps)


if __name__ == "__main__":
    default = Config().data.bucket_batches
    print(f"by length within {default} global batches: {padding_ratio(default):.1%}")
    print(f"random rows: {padding_ratio(1):.1%}")
