"""The settings of DeepSpeed that are known here are those that DeepSpeed knows."""

import json
import subprocess
import sys

from pipeline.strategy import zero_keys

# In a process of its own: what is imported looks for a GPU and changes how warnings are told.
NAMES = """
import json
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.monitor.config import CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
models = {
    "zero_optimization": DeepSpeedZeroConfig, "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig, "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config, "comms_logger": CommsLoggerConfig, "tensorboard": TensorBoardConfig,
    "csv_monitor": CSVConfig, "wandb": WandbConfig,
}
names = {path: [[name, field.alias or name] for name, field in model.model_fields.items()]
         for path, model in models.items()}
print("NAMES" + json.dumps(names))
"""


def test_no_setting_of_deepspeed_is_unknown_and_none_is_made_up() -> None:
    done = subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, timeout=240, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("NAMES"))
    for path, pairs in json.loads(line.removeprefix("NAMES")).items():
        ours = zero_keys.TOP
        for key in path.split("."):
            ours = ours[key]
        theirs = {name for pair in pairs for name in pair}
        refused = {name for name in theirs if f"{path}.{name}" in zero_keys.NOT_SERVED}
        assert ours.keys() == theirs - refused, path


def test_a_section_that_is_turned_off_may_stay_and_one_in_use_is_refused() -> None:
    off = {"amp": {"enabled": False}, "activation_checkpointing": {"partition_activations": False, "profile": False}}
    assert zero_keys.problems(off) == []
    (problem,) = zero_keys.problems({"activation_checkpointing": {"cpu_checkpointing": True}})
    assert problem.endswith("activation_checkpointing has no effect here; set training.activation_checkpointing")
