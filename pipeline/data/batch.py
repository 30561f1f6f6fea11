"""Tables of tokenised rows to padded tensors; the same for both engines."""

from dataclasses import dataclass

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.data.plan import FILL

if TYPE_CHECKING:
    # Ray Data's processes import this module too, and only those that train need torch, which takes seconds.
    import torch

Batch = dict[str, "torch.Tensor"]
IGNORED = -100  # what transformers and torch leave out of a loss


def numbered(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """The tokenised rows with their row number beside them, FILL and weight 0 where a row only fills up."""
    weights = np.where(rows == FILL, np.float32(0), table["weight"].to_numpy().astype(np.float32))
    table = table.set_column(table.column_names.index("weight"), "weight", pa.array(weights))
    return table.append_column("row", pa.array(rows, pa.int64()))


def _padded(column: pa.ChunkedArray, pad: int, multiple: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    array = column.combine_chunks()
    lengths = np.diff(array.offsets.to_numpy())
    width = -(-int(lengths.max()) // multiple) * multiple
    mask = np.arange(width) < lengths[:, None]
    padded = np.full(mask.shape, pad, np.int64)
    padded[mask] = array.flatten().to_numpy()
    return padded, mask


def _positions(documents: pa.ChunkedArray, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Position of each token in its document; what fills a row up counts as one more document."""
    width = mask.shape[1]
    positions = np.empty(mask.shape, np.int64)
    for line, sizes, used in zip(positions, documents.to_pylist(), mask.sum(1).tolist(), strict=True):
        line[:] = np.concatenate([np.arange(size) for size in (*sizes, width - used)])
    return positions


@dataclass(frozen=True)
class Collate:
    """Table of tokenised rows -> tensors.

    Gives `input_ids`, `attention_mask` and, for pairs, `token_type_ids`, each of shape (rows, longest row); `labels` of
    shape (rows,) or (rows, labels); `weight` and `row` of shape (rows,).

    For causal-lm `labels` have the shape of `input_ids`, IGNORED where a token does not count, and `position_ids`,
    which begin at 0 with each document, stand in place of a mask: by them attention is kept within a document.

    Args:
        pad: token that fills up.
        multiple: the padded length is rounded up to it (8 suits the tensor cores of GPUs).
        keep_fill: keep rows that only fill up, so that all ranks have batches of one size (evaluation).
    """

    pad: int
    multiple: int = 1
    keep_fill: bool = False

    def __call__(self, table: pa.Table) -> Batch:
        import torch

        rows = table["row"].to_numpy()
        if not self.keep_fill:
            # One row must stay: a rank without rows still takes part in the step's collectives.
            real = np.flatnonzero(rows != FILL)
            table = table.take(real if len(real) else np.array([0]))
            rows = table["row"].to_numpy()
        ids, mask = _padded(table["input_ids"], self.pad, self.multiple)
        batch = {"input_ids": torch.from_numpy(ids)}
        batch["weight"] = torch.from_numpy(table["weight"].to_numpy().copy())
        batch["row"] = torch.from_numpy(rows.copy())
        if "target" in table.column_names:
            counts = _padded(table["target"], 0, self.multiple)[0]
            batch["labels"] = torch.from_numpy(np.where(counts == 1, ids, IGNORED))
            batch["position_ids"] = torch.from_numpy(_positions(table["documents"], mask))
            return batch
        batch["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        if "token_type_ids" in table.column_names:
            batch["token_type_ids"] = torch.from_numpy(_padded(table["token_type_ids"], 0, self.multiple)[0])
        labels = table["label"].combine_chunks()
        if pa.types.is_list(labels.type):
            flat = labels.flatten().to_numpy()
            batch["labels"] = torch.from_numpy(flat.reshape(len(table), -1).copy())
        else:
            batch["labels"] = torch.from_numpy(labels.to_numpy(zero_copy_only=False).copy())
        return batch
