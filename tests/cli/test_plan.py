"""`dora plan`: a cluster in, a complete set-up out, and what the neighbours would give."""

import json
from collections.abc import Callable
from typing import Any

Dora = Callable[..., Any]

ASKED = ["--model", "Qwen3-1.7B", "--gpu", "H100", "--gpus", 8, "--groups", 16, "--group-size", 4,
         "--lengths", "200:0.8:2000", "--set", "slots=32", "--set", "rows=64"]  # fmt: skip


def test_json_holds_every_choice_its_cost_and_its_neighbours(dora: Dora) -> None:
    called = dora("plan", *ASKED, "--json")
    plan = json.loads(called.out)
    assert called.err == ""
    assert plan["rollout_gpus"] + plan["train_gpus"] == 8
    assert plan["instances"] * plan["tensor_parallel"] == plan["rollout_gpus"]
    assert 1 <= plan["max_staleness"] <= 3
    assert 16 <= plan["active_groups"] <= (plan["max_staleness"] + 1) * 16
    assert plan["step_time_s"] > 0
    varied = {option["choice"] for option in plan["options"]}
    assert {"rollout GPUs", "tensor parallel", "S", "R", "schedule"} >= varied >= {"S", "schedule"}
    memory = plan["memory"]
    assert memory["weights_bytes"] + memory["kv_bytes"] < memory["gpu_bytes"]
    assert memory["trainer_bytes"] < memory["gpu_bytes"]


def test_words_name_the_choices_the_bottleneck_and_how_much_each_matters(dora: Dora) -> None:
    out = dora("plan", *ASKED, "--max-staleness", 2).out
    for word in ("split", "tensor parallel", "max_staleness", "active_groups", "bottleneck", "GiB", "sync"):
        assert word in out
    assert "How much each choice matters" in out


def test_what_is_fixed_stays_fixed(dora: Dora) -> None:
    fixed = ["--set", "tensor_parallel=2", "--set", "rollout_gpus=4", "--max-staleness", 1]
    plan = json.loads(dora("plan", *ASKED, *fixed, "--json").out)
    assert (plan["tensor_parallel"], plan["rollout_gpus"], plan["max_staleness"]) == (2, 4, 1)
