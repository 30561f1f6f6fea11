"""A plain Accelerate script, as it was before it was brought over; examples/own_loop.py is what has become of it.

accelerate launch --num_processes 2 examples/plain_accelerate.py FOLDER_OF_MODEL train.csv test.csv
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup


def train(path: str, train_file: str, validation_file: str) -> float:
    accelerator = Accelerator()
    set_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(path)
    rows = load_dataset("csv", data_files={"train": train_file, "validation": validation_file})
    labels = sorted(set(rows["train"]["category"]))

    def encode(batch):
        numbers = [labels.index(label) for label in batch["category"]]
        return {**tokenizer(batch["text"], truncation=True, max_length=128), "labels": numbers}

    def collate(batch):
        return tokenizer.pad(batch, return_tensors="pt")

    rows = rows.map(encode, batched=True, remove_columns=["text", "category"])
    train_batches = DataLoader(rows["train"], batch_size=32, shuffle=True, collate_fn=collate)
    validation_batches = DataLoader(rows["validation"], batch_size=64, collate_fn=collate)

    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=len(labels))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, 2 * len(train_batches))
    model, optimizer, scheduler, train_batches, validation_batches = accelerator.prepare(
        model, optimizer, scheduler, train_batches, validation_batches
    )
    for epoch in range(2):
        model.train()
        for batch in train_batches:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right, seen = 0, 0
        for batch in validation_batches:
            with torch.no_grad():
                predicted = model(**batch).logits.argmax(-1)
            predicted, wanted = accelerator.gather_for_metrics((predicted, batch["labels"]))
            right, seen = right + (predicted == wanted).sum().item(), seen + len(wanted)
        accelerator.print(f"epoch {epoch}: accuracy {right / seen:.4f} of {seen} rows")
    return right / seen


if __name__ == "__main__":
    train(*sys.argv[1:])
