"""Models that are spread over the workers, on the cluster: FSDP2 and ZeRO-3."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.lab import RUN, Lab, merged
from tests.e2e.test_faults import EVERY, STEPS, assert_checkpoints_are_complete
from tests.e2e.unbroken import CONFIG, Unbroken

pytestmark = pytest.mark.e2e_long


def _config(**strategy: Any) -> dict[str, Any]:
    return merged(CONFIG, {"strategy": strategy})


def test_fsdp_survives_the_loss_of_a_worker_and_ends_as_ddp_does(lab: Lab, unbroken: Unbroken, tmp_path: Path) -> None:
    lab.apply(lab.documents(config=_config(kind="fsdp", state_dict="sharded")))
    with lab.forwarded():
        step = lab.wait_checkpoint(300, newest_step=STEPS - EVERY)
        worker = lab.nodes_of_ray("worker")[0]["metadata"]["name"]
        lab.kubectl("delete", "pod", worker, "--force", "--grace-period=0")
        lab.wait_succeeded(900)
        result = json.loads(lab.read("result.json"))
        assert (result["strategy"], result["steps"], result["attempts"]) == ("fsdp", STEPS, 2)
        assert result["resumed_from_step"] >= step
        # The same sums in another order, over 240 steps.
        assert result["metrics"]["eval_loss"] == pytest.approx(unbroken.result["metrics"]["eval_loss"], rel=0.02)
        assert_checkpoints_are_complete(lab)
        lab.pipeline("runs", "export", RUN, str(tmp_path / "model"))
    assert _layers_and_labels(tmp_path / "model") == (2, 77)


def test_zero_3_trains_on_two_pods_and_exports(lab: Lab, unbroken: Unbroken, tmp_path: Path) -> None:
    config = merged(_config(kind="deepspeed", zero_stage=3), {"training": {"mixed_precision": "bf16"}})
    lab.apply(lab.documents(config=config))
    with lab.forwarded():
        lab.wait_succeeded(1200)
        result = json.loads(lab.read("result.json"))
        assert (result["strategy"], result["steps"], result["eval_rows"]) == ("deepspeed", STEPS, 3080)
        assert len({worker["host"] for worker in result["workers"]}) == 2
        # In bf16, where DDP's run was in float32.
        assert result["metrics"]["eval_loss"] == pytest.approx(unbroken.result["metrics"]["eval_loss"], rel=0.1)
        lab.pipeline("runs", "export", RUN, str(tmp_path / "model"))
    assert _layers_and_labels(tmp_path / "model") == (2, 77)


def _layers_and_labels(folder: Path) -> tuple[int, int]:
    from transformers import AutoModelForSequenceClassification

    config = AutoModelForSequenceClassification.from_pretrained(folder).config
    return config.num_hidden_layers, config.num_labels
