"""DDP, FSDP and DeepSpeed behind one face: build the Accelerator, prepare, prove, and where they differ in a step."""

from pipeline.strategy.build import accelerator, adamw, backward, gradient_norm, prepare, synchronised
from pipeline.strategy.proof import held, prove, prove_active

__all__ = [
    "accelerator",
    "adamw",
    "backward",
    "gradient_norm",
    "held",
    "prepare",
    "prove",
    "prove_active",
    "synchronised",
]
