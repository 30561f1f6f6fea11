"""Bad settings of a strategy: ours, DeepSpeed's own and those of a file by `accelerate config`."""

import json
from typing import Any

from tests.bad_inputs.case import Case, setting


def zero(name: str, mapping: dict[str, Any] | str, *words: str) -> Case:
    """A job with a DeepSpeed configuration, from a file."""
    text = mapping if isinstance(mapping, str) else json.dumps(mapping)
    return setting(
        name, "strategy.kind=deepspeed strategy.config=ds.json", "strategy.config: ", *words,
        files={"ds.json": text.encode()},
    )  # fmt: skip


def accelerate(name: str, text: str, *words: str) -> Case:
    """A job with a file of `accelerate config`."""
    return setting(
        name, "strategy.accelerate_config=a.yaml", "strategy.accelerate_config: a.yaml: ", *words,
        files={"a.yaml": text.encode()},
    )  # fmt: skip


def adamw(**params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": "AdamW", "params": params}}


STRATEGIES = [
    zero("truth as text", {"fp16": {"enabled": "true"}}, "fp16.enabled is 'true'; expected true or false"),
    zero("section misspelt", {"zero_optimisation": {"stage": 2}}, "zero_optimisation is no setting of DeepSpeed",
         "did you mean zero_optimization?"),
    zero("key misspelt", {"zero_optimization": {"stag3_prefetch_bucket_size": 5}},
         "did you mean zero_optimization.stage3_prefetch_bucket_size?"),
    zero("section that is not served", {"pipeline": {"stages": 2}}, "pipeline has no effect here; remove it"),
    zero("curriculum", {"curriculum_learning": {"enabled": True}}, "curriculum_learning has no effect here"),
    zero("apex", {"amp": {"enabled": True}}, "amp has no effect here; set training.mixed_precision"),
    zero("old name of an offload", {"zero_optimization": {"cpu_offload": False}}, "write offload_optimizer: {device"),
    zero("betas above 1", adamw(betas=[2, 3]), "betas is [2, 3]; expected two numbers from 0 to below 1"),
    zero("truth as beta", adamw(betas=[-0.5, True]), "betas is [-0.5, True]"),
    zero("NaN as beta", '{"optimizer": {"type": "AdamW", "params": {"betas": [NaN, 0.9]}}}', "betas is [nan, 0.9]"),
    zero("negative eps", adamw(eps=-1), "eps is -1; expected a number of at least 0"),
    zero("NaN as eps", '{"optimizer": {"type": "AdamW", "params": {"eps": NaN}}}', "eps is nan"),
    zero("bucket as word", {"zero_optimization": {"reduce_bucket_size": "big"}}, "is 'big'; expected a whole number"),
    zero("negative bucket", {"zero_optimization": {"reduce_bucket_size": -5}}, "reduce_bucket_size is -5"),
    zero("type of messages", {"communication_data_type": "fp99"}, "is 'fp99'; expected fp32 or fp16 or bf16"),
    zero("truth as stage", {"zero_optimization": {"stage": True}}, "zero_optimization.stage is true; expected 0, 1"),
    zero("number of 400 digits", f'{{"train_batch_size": {"9" * 400}}}', "train_batch_size is 999", "a number"),
    zero("number of 5000 digits", f'{{"train_batch_size": {"9" * 5000}}}', "ds.json: not valid JSON: Exceeds"),
    zero("very deep", '{"a": ' * 100_000, "ds.json: not valid JSON: "),
    zero("deep", '{"amp": ' + "[" * 900 + "]" * 900 + "}", "ds.json is nested more than 20 deep"),
    zero("key twice in JSON", '{"fp16": {"enabled": true, "enabled": false}}', "'enabled' is given twice"),
    setting("mapping on the command line", 'strategy.kind=deepspeed strategy.config={"zero_optimization":{"stage":9}}',
            "strategy.config: zero_optimization.stage is 9; expected 0, 1, 2 or 3"),
    Case("mapping in a variable", ("strategy.config: zero_optimization.stage is 9; expected 0, 1, 2 or 3",),
         ("strategy.kind=deepspeed",),
         environ={"PIPELINE__STRATEGY__CONFIG": "{zero_optimization: {stage: 9}}"}),
    setting("NUL in the name of a file", 'strategy.kind=deepspeed strategy.config="a\\0.json"',
            "strategy.config: a\\x00.json: holds a character that no path can have"),
    setting("home of nobody", "strategy.accelerate_config=~nobody-here/a.yaml",
            "strategy.accelerate_config: ~nobody-here/a.yaml: no such file"),
    setting("parameters elsewhere without a stage", "strategy.kind=deepspeed strategy.offload_parameters=cpu",
            "strategy.offload_parameters: cpu needs zero_stage 3, found 2"),
    accelerate("offload that may be", "distributed_type: FSDP\nfsdp_config: {fsdp_offload_params: maybe}\n",
               "fsdp_config.fsdp_offload_params is 'maybe'; expected true or 1 or yes or false"),
    accelerate("version of FSDP with a fraction", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2.5}\n",
               "fsdp_config.fsdp_version is 2.5; expected 1 or 2"),
    accelerate("version of FSDP as word", "distributed_type: FSDP\nfsdp_config: {fsdp_version: two}\n",
               "fsdp_config.fsdp_version is 'two'; expected 1 or 2"),
    accelerate("version of FSDP to come", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 3}\n",
               "fsdp_config.fsdp_version is 3; expected 1 or 2"),
    accelerate("settings of another type", "distributed_type: MULTI_GPU\nfsdp_config: {fsdp_version: 2}\n",
               "fsdp_config is for distributed_type FSDP, found MULTI_GPU"),
    accelerate("FSDP as a number", "distributed_type: FSDP\nfsdp_config: 5\n", "fsdp_config is 5; expected a mapping"),
    accelerate("DeepSpeed as a word", "distributed_type: DEEPSPEED\ndeepspeed_config: x\n",
               "deepspeed_config is 'x'; expected a mapping"),
    accelerate("stage beyond all", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 9}\n",
               "deepspeed_config.zero_stage is 9; expected 0 or 1 or 2 or 3"),
    accelerate("offload to disk", "distributed_type: DEEPSPEED\ndeepspeed_config: {offload_param_device: nvme}\n",
               "deepspeed_config.offload_param_device is 'nvme'; expected none or cpu"),
]  # fmt: skip
