"""Random states of a process as tensors, for checkpoints."""

import random

import numpy as np
import torch


def states() -> dict[str, torch.Tensor]:
    """Of Python, NumPy and torch, and of this process's GPU."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    assert version == 3 and kind == "MT19937"
    tensors = {
        "python": torch.tensor(numbers, dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.asarray(keys, np.int64).copy()),
        "numpy_rest": torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors


def restore(tensors: dict[str, torch.Tensor]) -> None:
    """Put back what `states` gave."""
    random.setstate((3, tuple(tensors["python"].tolist()), next(iter(tensors["python_gauss"].tolist()), None)))
    position, has_gauss, cached = tensors["numpy_rest"].tolist()
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))  # noqa: NPY002
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
