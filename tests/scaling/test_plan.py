"""Budgets, plans and the command line."""

import json
import math

import pytest

from hf_variants import cli
from hf_variants.analysis import count_parameters, flops_per_token
from hf_variants.convert.config_source import read_config
from hf_variants.presets import load_preset
from hf_variants.scaling import PUBLISHED, Budget, effective_tokens, hyperparameter_guides, plan_training

LAW = PUBLISHED["besiroglu2024"]


def test_hours_and_money_are_the_operations_they_pay_for():
    hardware = {"devices": 8, "peak_tflops": 989, "mfu": 0.4}
    hours = Budget.of(hours=24, **hardware)
    assert hours.flops == pytest.approx(24 * 3600 * 8 * 989e12 * 0.4) and hours.money is None
    money = Budget.of(money=384, price_per_hour=2.0, **hardware)
    assert money.hours == pytest.approx(24) and money.flops == pytest.approx(hours.flops)
    back = Budget.of(flops=hours.flops, price_per_hour=2.0, **hardware)
    assert back.hours == pytest.approx(24) and back.money == pytest.approx(384)


@pytest.mark.parametrize(
    "keys, match",
    [
        ({}, "exactly one of flops, hours, money; got none"),
        ({"flops": 1e20, "hours": 2}, "exactly one"),
        ({"flops": -1}, "flops=-1 is out of range"),
        ({"flops": math.nan}, "flops=nan"),
        ({"flops": 3.0}, "check the units"),
        ({"hours": 24}, "needs devices, peak_tflops, mfu"),
        ({"flops": 1e20, "mfu": 0.4}, "also needs devices, peak_tflops"),
        ({"flops": 1e20, "price_per_hour": 2}, "also needs devices, peak_tflops, mfu"),
        ({"money": 24, "devices": 1, "peak_tflops": 9, "mfu": 0.3}, "needs price_per_hour"),
        ({"hours": 24, "devices": 1, "peak_tflops": 9, "mfu": 40}, "mfu=40 is out of range.*at most 1"),
        ({"hours": 24, "devices": 0, "peak_tflops": 9, "mfu": 0.4}, "devices=0"),
        ({"hours": 24, "devices": 0.5, "peak_tflops": 9, "mfu": 0.4}, "devices=0.5 must be a whole number"),
        ({"flops": 1e20, "devices": 1.5, "peak_tflops": 9, "mfu": 0.4}, "devices=1.5 must be a whole number"),
    ],
)
def test_bad_budgets_are_named(keys, match):
    with pytest.raises(ValueError, match=match):
        Budget.of(**keys)


def test_a_plan_is_the_law_s_optimum():
    plan = plan_training(LAW, Budget.of(flops=1e21))
    assert (plan.parameters, plan.tokens) == LAW.optimum(1e21)
    assert plan.loss == pytest.approx(LAW.loss(plan.parameters, plan.tokens))
    assert plan.overtraining == pytest.approx(1) and plan.justified_by_inference is None
    assert plan.batch_tokens % 2048 == 0 and plan.steps == round(plan.tokens / plan.batch_tokens)


def test_a_smaller_model_is_over_trained_and_says_what_justifies_it():
    optimum = plan_training(LAW, Budget.of(flops=1e21))
    small = plan_training(LAW, Budget.of(flops=1e21), parameters=optimum.parameters / 4)
    assert small.tokens == pytest.approx(4 * optimum.tokens) and small.overtraining > 4
    assert small.loss > optimum.loss and small.justified_by_inference > 0
    large = plan_training(LAW, Budget.of(flops=1e21), tokens=optimum.tokens / 4)
    assert large.parameters == pytest.approx(4 * optimum.parameters) and large.justified_by_inference is None


def test_serving_prefers_a_smaller_model_of_the_same_loss():
    plan = plan_training(LAW, Budget.of(flops=1e21), inference_tokens=1e13)
    served = plan.served
    assert served["parameters"] < plan.parameters and served["tokens"] > plan.tokens
    assert LAW.loss(served["parameters"], served["tokens"]) == pytest.approx(plan.loss)
    assert served["total_flops"] < 1e21 + 2 * plan.parameters * 1e13


def test_repeated_tokens_are_worth_less_and_less():
    assert effective_tokens(1e9, 1e9) == 1e9 and effective_tokens(5e8, 1e9) == 5e8
    worth = [effective_tokens(passes * 1e9, 1e9) for passes in (2, 4, 40, 400)]
    assert worth == sorted(worth) and worth[1] > 3.6e9 and worth[-1] < 16.5e9
    assert effective_tokens(1e9, quality=0.5) == 5e8


def test_little_data_moves_the_plan_to_fewer_tokens():
    free = plan_training(LAW, Budget.of(flops=1e21))
    short = plan_training(LAW, Budget.of(flops=1e21), unique_tokens=free.tokens / 20)
    assert short.tokens < free.tokens and short.parameters > free.parameters and short.loss > free.loss
    assert 6 * short.parameters * short.tokens == pytest.approx(1e21)
    assert any("passes over the data" in text for text in short.warnings)


def test_quality_moves_the_optimum_as_the_law_says():
    poor = plan_training(LAW, Budget.of(flops=1e21), quality=0.5)
    pairs = 1e21 / 6
    for other in (poor.parameters * 0.99, poor.parameters * 1.01):
        assert LAW.loss(other, 0.5 * pairs / other) > poor.loss


def test_a_config_is_planned_with_its_exact_operations():
    config = load_preset("llama-3-8b")
    plan = plan_training(LAW, Budget.of(flops=1e23), config=config, sequence_length=8192)
    per_token = 3 * flops_per_token(config, 8192).total
    assert plan.tokens == pytest.approx(1e23 / per_token) and plan.parameters == count_parameters(config).active
    assert plan.exact["six_n"] == 6 * plan.parameters


def test_experts_are_planned_with_active_parameters_and_say_so():
    plan = plan_training(LAW, Budget.of(flops=1e23), config=load_preset("mixtral-8x7b"))
    assert plan.exact["total_parameters"] > 3 * plan.exact["active_parameters"]
    assert any("mixture of experts" in text for text in plan.warnings)


@pytest.mark.parametrize("name", ["bert-base", "t5-small"])
def test_laws_of_decoders_say_nothing_of_other_models(name):
    with pytest.raises(ValueError, match="next-token loss of decoders"):
        plan_training(LAW, Budget.of(flops=1e21), config=read_config(name))


def test_guides_follow_their_power_laws():
    small, large = hyperparameter_guides(1e8, 1e10), hyperparameter_guides(1e9, 1e11)
    assert small["deepseek"]["learning_rate"] / large["deepseek"]["learning_rate"] == pytest.approx(100**0.125)
    assert large["steplaw"]["batch_tokens"] / small["steplaw"]["batch_tokens"] == pytest.approx(10**0.571)
    assert 1e-4 < large["steplaw"]["learning_rate"] < 1e-2


def test_plans_that_contradict_themselves():
    budget = Budget.of(flops=1e21)
    with pytest.raises(ValueError, match="at most one of parameters, tokens, config"):
        plan_training(LAW, budget, parameters=1e9, tokens=1e9)
    with pytest.raises(ValueError, match="less than one batch"):
        plan_training(LAW, Budget.of(flops=1e15), parameters=1e9, batch_tokens=1e6)
    with pytest.raises(ValueError, match="batch_tokens=100 holds no row"):
        plan_training(LAW, budget, batch_tokens=100)
    for config in (None, load_preset("tiny/base")):
        with pytest.raises(ValueError, match="sequence_length=-4 is out of range"):
            plan_training(LAW, budget, config=config, sequence_length=-4)


def command(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        cli.main(["scaling", *words])
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def test_command_line_from_runs_to_plan(tmp_path, capsys):
    rows = ["parameters,tokens,loss"]
    rows += [f"{n},{d},{LAW.loss(n, d)}" for n in (1e7, 1e8, 1e9) for d in (1e9, 1e10, 1e11)]
    (tmp_path / "runs.csv").write_text("\n".join(rows))
    law = str(tmp_path / "law.json")
    words = [
        "fit",
        str(tmp_path / "runs.csv"),
        "--bootstrap",
        "2",
        "--output",
        law,
        "--plot",
        str(tmp_path / "fit.png"),
        "--json",
    ]
    code, out, _ = command(capsys, *words)
    assert code == 0 and json.loads(out)["law"]["alpha"] == pytest.approx(LAW.alpha, rel=1e-3)
    assert (tmp_path / "fit.png").read_bytes()[:4] == b"\x89PNG"
    code, out, _ = command(capsys, "plan", "--law", law, "--flops", "1e21", "--json", "--plot", str(tmp_path / "plan.svg"))
    plan = json.loads(out)
    assert code == 0 and plan["parameters"] == pytest.approx(LAW.optimum(1e21)[0], rel=1e-3)
    assert len(plan["interval"]) == 2 and any("beyond the runs" in text for text in plan["warnings"])
    assert b"<svg" in (tmp_path / "plan.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit.png", "law.json", "plan.svg", "runs.csv"]


def test_command_line_tables(capsys, tmp_path):
    code, out, _ = command(capsys, "table", "--plot", str(tmp_path / "table.png"))
    assert (tmp_path / "table.png").read_bytes()[:4] == b"\x89PNG"
    assert code == 0 and "LLaMA 3 8B" in out and "besiroglu2024" in out
    code, out, _ = command(capsys, "plan", "--flops", "1e21", "--inference-tokens", "1e12")
    assert code == 0 and "over-training" in out and "cheapest to serve" in out


@pytest.mark.parametrize(
    "words, match",
    [
        (["plan", "--flops", "1e21", "--plot", "plan.gif"], "choose from .png"),
        (["plan", "--law", "kaplan", "--flops", "1e21"], "choose from"),
        (["plan", "--law", "missing.json", "--flops", "1e21"], "is not a file"),
        (["plan"], "exactly one of flops, hours, money"),
        (["fit", "missing.csv"], "is not a file"),
    ],
)
def test_command_line_mistakes_are_one_line(capsys, words, match):
    code, _, err = command(capsys, *words)
    assert code == 2 and match in err
