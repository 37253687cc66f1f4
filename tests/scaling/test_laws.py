"""Laws, their optimum and what serving costs: closed forms against a search on the law itself."""

import math

import pytest

from hf_variants.scaling import PUBLISHED, ScalingLaw, overtraining_table, published_law
from hf_variants.scaling.plan import cheapest_to_serve

LAWS = pytest.mark.parametrize("law", PUBLISHED.values(), ids=PUBLISHED)


def neighbours(value, step=1e-3):
    return value * (1 - step), value * (1 + step)


@LAWS
@pytest.mark.parametrize("flops", [1e18, 5.76e23, 1e27])
def test_the_optimum_spends_the_budget_and_beats_its_neighbours(law, flops):
    n, d = law.optimum(flops)
    assert 6 * n * d == pytest.approx(flops, rel=1e-9)
    for other in neighbours(n):
        assert law.loss(other, flops / 6 / other) > law.loss(n, d)
    assert law.optimal_tokens(n) == pytest.approx(d, rel=1e-9)


def test_published_laws_disagree_about_twenty_tokens_per_parameter():
    """At Chinchilla's budget the constants of Hoffmann et al. give far more than 20 per parameter, the refit about 20."""
    ratios = {name: law.optimum(5.76e23)[1] / law.optimum(5.76e23)[0] for name, law in PUBLISHED.items()}
    assert ratios["hoffmann2022"] > 60 and 15 < ratios["besiroglu2024"] < 25


@LAWS
def test_tokens_for_a_loss_invert_the_law(law):
    loss = law.loss(8e9, 15e12)
    assert law.tokens_for(loss, 8e9) == pytest.approx(15e12, rel=1e-6)
    assert law.tokens_for(law.E, 8e9) == math.inf


@LAWS
def test_the_inference_volume_that_justifies_a_size_makes_it_the_cheapest(law):
    n = 8e9
    d = 5 * law.optimal_tokens(n)
    volume = law.justifying_inference(n, d)
    served = cheapest_to_serve(law, law.loss(n, d), volume)
    assert served["parameters"] == pytest.approx(n, rel=1e-3) and served["tokens"] == pytest.approx(d, rel=1e-2)
    assert law.justifying_inference(n, law.optimal_tokens(n)) == pytest.approx(0, abs=1e-3 * d)
    assert law.justifying_inference(n, 0.5 * law.optimal_tokens(n)) < 0


@LAWS
def test_without_inference_the_cheapest_is_the_compute_optimum(law):
    n, d = law.optimum(1e22)
    served = cheapest_to_serve(law, law.loss(n, d), 0)
    assert served["parameters"] == pytest.approx(n, rel=1e-3)
    assert served["total_flops"] == pytest.approx(1e22, rel=1e-6)


def test_the_table_of_published_runs():
    rows = {row["model"]: row for row in overtraining_table()}
    # 20 tokens per parameter: 1B 20B, 8B 160B, 70B 1.4T, 405B 8.1T
    for model, optimal, factor in (
        ("TinyLlama 1.1B", 22e9, 136),
        ("LLaMA 3 8B", 160e9, 93),
        ("LLaMA 2 70B", 1.4e12, 1.45),
        ("LLaMA 3.1 405B", 8.1e12, 1.92),
    ):
        rule = rows[model]["rule_of_20"]
        assert rule["optimal_tokens"] == pytest.approx(optimal, rel=0.02)
        assert rule["overtraining"] == pytest.approx(factor, rel=0.02)
    assert rows["LLaMA 2 70B"]["hoffmann2022"]["justified_by_inference"] is None


def test_the_figure_of_published_runs_shows_them_beside_optima(monkeypatch):
    from matplotlib.figure import Figure

    from hf_variants.scaling import plots

    axes = Figure().subplots()
    monkeypatch.setattr(plots, "save_plot", lambda draw, path: draw(axes))
    plots.plot_table(overtraining_table(), "table.png")
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert [8_030_261_248, 15e12] in lines.pop("trained on") and len(lines) == 1 + len(PUBLISHED)
    assert all(d == 20 * n for n, d in lines["optimal by rule of 20"])
    for name, law in PUBLISHED.items():
        for n, d in lines[f"optimal by {name}"]:
            assert law.optimum(6 * n * d) == pytest.approx((n, d))
    assert {"LLaMA 3 8B", "TinyLlama 1.1B"} <= {text.get_text() for text in axes.texts}


@pytest.mark.parametrize("name", ["A", "B", "alpha", "beta"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1"])
def test_constants_that_mean_nothing_are_refused(name, value):
    constants = {"A": 400.0, "B": 400.0, "E": 1.7, "alpha": 0.3, "beta": 0.3, name: value}
    with pytest.raises(ValueError, match=name):
        ScalingLaw(**constants)


def test_unknown_law():
    with pytest.raises(ValueError, match="besiroglu2024.*hoffmann2022"):
        published_law("chinchilla")
