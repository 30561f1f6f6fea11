"""What the proofs before a first step say, on the processes of a world."""

from typing import Any

import torch

from pipeline import strategy
from pipeline.config import Config


def proof_of_a_leaking_model(path: str, broken: str) -> str:
    """The words of the refusal of a model that lets tokens see what they must not."""
    from transformers import LlamaForCausalLM

    from pipeline.errors import RunError
    from pipeline.tasks import prove_causal

    model = LlamaForCausalLM.from_pretrained(path)
    prove_causal(model, torch.device("cpu"), packed=True)  # as it is it passes
    plain = model.forward

    def forward(**given: Any) -> Any:
        if broken == "documents":
            given["position_ids"] = None  # as a model without such an argument takes them
        else:
            # Each document is kept to itself, but all of it is seen from each of its tokens.
            document = torch.tensor([0, 0, 0, 1, 1, 1])
            given["attention_mask"] = (document[:, None] == document[None]).view(1, 1, 6, 6)
        return plain(**given)

    model.forward = forward
    try:
        prove_causal(model, torch.device("cpu"), packed=True)
    except RunError as error:
        return str(error)
    return "accepted"


def places() -> Any:
    """What Accelerate sees of this process."""
    job = Config()
    accelerator = strategy.accelerator(job, torch.device("cpu"))
    strategy.prove(accelerator, accelerator.process_index, accelerator.local_process_index, accelerator.num_processes,
                   torch.device("cpu"))  # fmt: skip
    return accelerator.process_index, accelerator.local_process_index, accelerator.num_processes


def prove_wrong_world(size: int) -> str:
    """The words of the refusal when Ray has started another number of workers than Accelerate sees."""
    from pipeline.errors import RunError

    accelerator = strategy.accelerator(Config(), torch.device("cpu"))
    try:
        strategy.prove(
            accelerator, accelerator.process_index, accelerator.local_process_index, size, torch.device("cpu")
        )
    except RunError as error:
        return str(error)
    return "agreed"
