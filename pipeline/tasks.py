"""What each task's logits mean: what the model is given, the loss of a row, and what an evaluation comes to."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from pipeline.config import Task
from pipeline.data.batch import IGNORED, Batch
from pipeline.errors import RunError

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")

Array = npt.NDArray[Any]


def inputs(batch: Batch, device: torch.device) -> dict[str, Any]:
    """The model's arguments, without labels, on the device."""
    given: dict[str, Any] = {name: batch[name].to(device) for name in INPUTS if name in batch}
    if "position_ids" in given:
        # With a cache, transformers does not look for the documents of a packed sequence and they would see each other.
        given["use_cache"] = False
    return given


def row_losses(task: Task, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss of each row in float32, shape (rows,), of logits of shape (rows, outputs).

    causal-lm: the mean over the tokens that count (0 where none does), of logits of shape (rows, tokens, vocabulary).
    A row's weight is the number of these tokens.
    """
    if task == "causal-lm":
        losses, counts = token_losses(logits, labels)
        return losses / counts.clamp(min=1)
    logits = logits.float()
    if task == "regression":
        return (logits.squeeze(-1) - labels.float()) ** 2
    if task == "multi-label":
        return functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(-1)
    return functional.cross_entropy(logits, labels, reduction="none")


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of the losses of each row's tokens that count, and their number, both float32 of shape (rows,)."""
    # A token is predicted by the logits of the one in front of it.
    found, wanted = logits[:, :-1].float(), labels[:, 1:]
    losses = functional.cross_entropy(found.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.view(wanted.shape).sum(-1), (wanted != IGNORED).sum(-1).float()


def predictions(task: Task, logits: torch.Tensor) -> torch.Tensor:
    """Class of each row, shape (rows,); number of each row, (rows,); or 0 and 1 for each label, (rows, labels)."""
    if task == "regression":
        return logits.squeeze(-1).float()
    if task == "multi-label":
        return (logits > 0).long()
    return logits.argmax(-1)


def outcome(task: Task, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What an evaluation gathers of each row: loss, prediction and label; causal-lm: sum of losses and tokens.

    Never logits: a language model's are (tokens x vocabulary) numbers a row.
    """
    if task == "causal-lm":
        return token_losses(logits, labels)
    return row_losses(task, logits, labels), predictions(task, logits), labels


def judged(task: Task, scorer: Any, values: list[Array]) -> dict[str, float]:
    """Loss and metrics, as `eval_NAME`, of the outcomes of all validation rows."""
    if task == "causal-lm":
        losses, tokens = (part.sum(dtype=np.float64) for part in values)
        loss = float(losses / tokens) if tokens else math.nan
        return {"eval_loss": loss, "eval_perplexity": float(np.exp(np.float64(loss))), "eval_tokens": int(tokens)}
    losses, found, wanted = values
    scores = scorer.compute(found, wanted)
    return {
        "eval_loss": float(losses.mean(dtype=np.float64)),
        **{f"eval_{name}": value for name, value in scores.items()},
    }


def prove_causal(model: torch.nn.Module, device: torch.device, packed: bool) -> None:
    """Try a language model on three sequences of six tokens; every rank calls it, before the first step.

    Raises:
        RunError: a later token changes the logits of an earlier one, or, with `packed`, what stands in one document of
            a sequence changes those of the next, so that the loss would not be that of each document alone.
    """
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]], device=device)
    logits = []
    training = model.training
    model.eval()
    for tokens in ([1, 2, 3, 4, 5, 6], [6, 5, 4, 4, 5, 6], [1, 2, 3, 4, 5, 1]):
        batch = {"input_ids": torch.tensor([tokens]), "position_ids": positions}
        with torch.no_grad():
            logits.append(model(**inputs(batch, device)).logits[0].float())
    model.train(training)
    first, other_before, other_after = logits
    slack = 1e-4 * float(first.abs().max())
    if packed and float((first[3:] - other_before[3:]).abs().max()) > slack:
        raise RunError(
            "data.packing: this model lets one document of a packed sequence see the one in front of it; set "
            "data.packing=false"
        )
    if float((first[:5] - other_after[:5]).abs().max()) > slack:
        raise RunError("model.task: causal-lm was asked for, but the model sees the tokens that it is to predict")
