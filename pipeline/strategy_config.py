"""The section `strategy` of the configuration; `pipeline/strategy/` makes it true."""

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.section import Section


class Strategy(Section):
    """How the model is spread over the workers; docs/strategies.md says which to choose."""

    kind: Literal["ddp", "fsdp", "deepspeed"] = Field(
        "ddp",
        description="`ddp`: a full copy on each worker. `fsdp`: parameters, gradients and moments sharded by PyTorch. "
        "`deepspeed`: by ZeRO.",
    )
    version: Literal[1, 2] = Field(2, description="Of FSDP; 1 needs GPUs.")
    state_dict: Literal["sharded", "full"] = Field(
        "sharded", description="FSDP checkpoints: each rank its shard, or rank 0 the whole."
    )
    reshard_after_forward: bool = Field(
        True, description="FSDP: give gathered parameters back after the forward pass; less memory, more messages."
    )
    cpu_offload: bool = Field(False, description="FSDP: keep parameters, gradients and moments in the CPU's memory.")
    activation_checkpointing: bool = Field(
        False, description="FSDP: compute a layer's activations again in the backward pass instead of keeping them."
    )
    wrap: Literal["auto"] | list[str] = Field(
        "auto", description="FSDP: classes that are sharded one by one; `auto`: the model's transformer layers."
    )
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = Field(
        None,
        description="DeepSpeed: 1 shards moments, 2 gradients too, 3 parameters too. If not given that of `config`, "
        "else 2.",
    )
    offload_optimizer: Literal["none", "cpu"] | None = Field(
        None, description="DeepSpeed: moments in the CPU's memory. If not given as in `config`, else none."
    )
    offload_parameters: Literal["none", "cpu"] | None = Field(
        None, description="DeepSpeed, stage 3: parameters in the CPU's memory. If not given as in `config`, else none."
    )
    config: str | dict[str, Any] | None = Field(
        None,
        description="DeepSpeed's own configuration, a JSON or YAML file or a mapping. `auto` in it is filled from this "
        "configuration; where the two disagree the job is refused.",
    )
    accelerate_config: str | None = Field(
        None,
        min_length=1,
        description="A file that `accelerate config` wrote: its distributed type, mixed precision, FSDP and DeepSpeed "
        "settings are taken over.",
    )

    def problems(self) -> list[str]:
        """Settings that do not go together, a line each."""
        settings = {
            "fsdp": (
                "version", "state_dict", "reshard_after_forward", "cpu_offload", "activation_checkpointing", "wrap",
            ),
            "deepspeed": ("zero_stage", "offload_optimizer", "offload_parameters", "config"),
        }  # fmt: skip
        fields = type(self).model_fields
        problems = [
            f"strategy.{name}: found {getattr(self, name)!r} beside accelerate_config, whose file says it"
            if self.accelerate_config
            else f"strategy.{name}: found {getattr(self, name)!r}, but it is a setting of kind {kind}, not of "
            f"{self.kind}"
            for kind, names in settings.items()
            if kind != self.kind or self.accelerate_config
            for name in names
            if getattr(self, name) != fields[name].default
        ]
        if self.accelerate_config and self.kind != "ddp":
            problems.append(f"strategy.kind: found {self.kind!r} beside accelerate_config, whose file says the kind")
        if self.wrap == []:
            problems.append("strategy.wrap: found [], expected 'auto' or names of classes")
        if self.offload_parameters == "cpu" and self.zero_stage not in (None, 3):
            problems.append(f"strategy.offload_parameters: cpu needs zero_stage 3, found {self.zero_stage}")
        if self.offload_optimizer == "cpu" and self.zero_stage == 0:
            problems.append("strategy.offload_optimizer: cpu needs zero_stage 1, 2 or 3, found 0")
        return problems
