"""The loop of examples/plain_accelerate.py inside a run: resumable, on any number of workers, with either data engine.

pipeline train -c examples/own-loop-ray.yaml
pipeline train -c examples/own-loop-torch.yaml

What has gone is the reading of data and all that is in the configuration; lines that differ are marked.
"""

import torch
from transformers import get_linear_schedule_with_warmup

from pipeline import Context


def train(context: Context) -> None:
    """Called on every worker."""
    accelerator = context.accelerator  # 1
    model = context.model()  # 2: or any other
    optimizer = torch.optim.AdamW(model.parameters(), lr=context.config.training.learning_rate)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, context.total_steps)  # 3
    model, optimizer, scheduler = context.prepare(model, optimizer, scheduler)  # 4: and what a checkpoint holds
    for _ in context.epochs():  # 5: those that are left
        model.train()
        for batch in context.train:  # 6
            with context.accumulate(model, batch):  # 7
                loss = model(**batch).loss * batch.share  # 8: right for uneven batches too
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            context.log(loss=loss)  # 9: and saves where a checkpoint is due
        model.eval()
        right, seen = 0, 0
        for batch in context.validation:  # 10
            with torch.no_grad():
                predicted = model(**batch).logits.argmax(-1)
            predicted, wanted = context.gather(batch, predicted, batch["labels"])  # 11
            right, seen = right + (predicted == wanted).sum().item(), seen + len(wanted)
        context.evaluated({"accuracy": right / seen})  # 12
