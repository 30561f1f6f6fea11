"""A bare PyTorch loop on two gloo processes over the batches of the default job: what a run is compared with.

Started by bench/__main__.py, one process a rank; rank 0 prints rows per second as JSON.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pipeline import settings
from pipeline.data.batch import Collate
from pipeline.data.engine import train_plan
from pipeline.data.inspect import inspect
from pipeline.data.torch_engine import Rows, index_of, tokenised
from pipeline.model import load_model, load_tokenizer


def main(overrides: list[str]) -> None:
    """Train `training.max_steps` steps. All batches are made before the clock starts: the loop waits for no data."""
    config = settings.load(None, overrides, {})
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))
    facts = inspect(config)
    table = tokenised(config, facts, "train")
    plan = train_plan(config, index_of(table), workers)
    rows, collate = Rows(table, plan), Collate(load_tokenizer(config.model, config.storage).pad_token_id)
    steps = config.training.max_steps
    assert steps is not None
    assert plan.shape.accumulation == 1
    batches = [collate(rows.__getitems__(plan.rank_rows(step, rank).tolist())) for step in range(steps)]
    dist.init_process_group("gloo")
    model = DistributedDataParallel(load_model(config.model, config.storage, facts.labels))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.training.learning_rate)
    began = 0.0
    for number, batch in enumerate(batches):
        if number == steps // 4:  # the first steps warm up
            dist.barrier()
            began = time.perf_counter()
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        loss = torch.nn.functional.cross_entropy(model(**inputs).logits, batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    dist.barrier()
    seconds = time.perf_counter() - began
    if rank == 0:
        counted = sum(len(plan.step_rows(step)) for step in range(steps // 4, steps))
        print(json.dumps({"rows_per_second": counted / seconds}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
