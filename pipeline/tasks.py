"""What each task's logits mean: the loss of a row and the prediction for it."""

import torch
from torch.nn import functional

from pipeline.config import Task


def row_losses(task: Task, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of each row in float32, shape (rows,), of logits of shape (rows, outputs)."""
    logits = logits.float()
    if task == "regression":
        return (logits.squeeze(-1) - labels.float()) ** 2
    if task == "multi-label":
        return functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(-1)
    return functional.cross_entropy(logits, labels, reduction="none")


def predictions(task: Task, logits: torch.Tensor) -> torch.Tensor:
    """Class of each row, shape (rows,); number of each row, (rows,); or 0 and 1 for each label, (rows, labels)."""
    if task == "regression":
        return logits.squeeze(-1).float()
    if task == "multi-label":
        return (logits > 0).long()
    return logits.argmax(-1)
