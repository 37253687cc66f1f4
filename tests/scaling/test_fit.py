"""Fits recover the laws that made the points; what cannot be fitted is refused."""

import math
import random

import pytest

from hf_variants.scaling import PUBLISHED, FittedLaw, Run, fit_isoflop, fit_law, read_runs

SIZES, TOKENS = (1e7, 1e8, 1e9, 1e10), (1e9, 1e10, 1e11)


def runs_of(law, noise=0.0, seed=0):
    draw = random.Random(seed)
    return [Run(n, d, law.loss(n, d) * math.exp(draw.gauss(0, noise))) for n in SIZES for d in TOKENS]


@pytest.mark.parametrize("name", PUBLISHED)
def test_exact_points_give_the_published_constants(name):
    fitted = fit_law(runs_of(PUBLISHED[name]), bootstrap=0)
    for constant in ("A", "B", "E", "alpha", "beta"):
        assert getattr(fitted.law, constant) == pytest.approx(getattr(PUBLISHED[name], constant), rel=1e-3), constant
    assert max(map(abs, fitted.residuals)) < 1e-6


def test_an_outlier_hardly_moves_the_fit():
    law = PUBLISHED["besiroglu2024"]
    runs = runs_of(law)
    runs[5] = Run(runs[5].parameters, runs[5].tokens, runs[5].loss * 1.2)  # a run that diverged
    fitted = fit_law(runs, bootstrap=0).law
    assert fitted.alpha == pytest.approx(law.alpha, rel=0.02) and fitted.beta == pytest.approx(law.beta, rel=0.02)


def test_noisy_points_give_intervals_and_predictions_that_hold_the_truth():
    law = PUBLISHED["besiroglu2024"]
    ticks = []
    fitted = fit_law(runs_of(law, noise=0.003), bootstrap=12, seed=1, progress=lambda done, total: ticks.append((done, total)))
    assert ticks[-1] == (12, 12) and len(fitted.samples) == 12
    low, high = fitted.intervals["N_exponent"]
    assert low < high and low - 0.03 < law.beta / (law.alpha + law.beta) < high + 0.03
    inside, far = fitted.predict(1e9, 1e10), fitted.predict(1e11, 1e13)
    assert inside["outside"] == {} and far["outside"] == {"parameters": pytest.approx(10), "tokens": pytest.approx(100)}
    assert inside["low"] <= inside["high"] and inside["loss"] == pytest.approx(law.loss(1e9, 1e10), rel=0.01)
    again = FittedLaw.from_dict(fitted.as_dict())
    assert again.predict(1e9, 1e10) == inside and again.intervals == fitted.intervals


def test_the_same_seed_gives_the_same_intervals():
    runs = runs_of(PUBLISHED["besiroglu2024"], noise=0.003)
    assert fit_law(runs, bootstrap=3, seed=4).intervals == fit_law(runs, bootstrap=3, seed=4).intervals


def test_too_few_runs_say_how_many():
    runs = runs_of(PUBLISHED["besiroglu2024"])
    with pytest.raises(ValueError, match="at least 6 runs; got 5"):
        fit_law(runs[:5])
    with pytest.raises(ValueError, match="3 different parameters .N.*got 2"):
        fit_law(runs[:6])
    with pytest.raises(ValueError, match="3 different tokens .D.*got 2"):
        fit_law([run for run in runs if run.tokens > 1e9])


def test_isoflop_minima_follow_the_law():
    law, runs = PUBLISHED["hoffmann2022"], []
    for flops in (1e18, 1e20, 1e22):
        best, _ = law.optimum(flops)
        for factor in (0.5, 0.7, 1.0, 1.4, 2.0):
            runs.append(Run(best * factor, flops / (6 * best * factor), law.loss(best * factor, flops / (6 * best * factor))))
    result = fit_isoflop(runs)
    assert result.N_exponent == pytest.approx(law.beta / (law.alpha + law.beta), abs=5e-3)
    assert result.D_exponent == pytest.approx(law.alpha / (law.alpha + law.beta), abs=5e-3)
    for profile in result.profiles:
        assert profile.parameters == pytest.approx(law.optimum(profile.flops)[0], rel=0.05)
        assert 6 * profile.parameters * profile.tokens == pytest.approx(profile.flops, rel=1e-6)


def test_a_minimum_outside_the_runs_is_named():
    law, flops = PUBLISHED["hoffmann2022"], 1e20
    best, _ = law.optimum(flops)
    small = [Run(best * f, flops / (6 * best * f), law.loss(best * f, flops / (6 * best * f))) for f in (0.05, 0.1, 0.2)]
    with pytest.raises(ValueError, match="add larger models"):
        fit_isoflop(small)
    with pytest.raises(ValueError, match="2 different sizes, 3 are needed"):
        fit_isoflop(small[:2])


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl"])
def test_runs_are_read_from_every_format(tmp_path, suffix):
    path = tmp_path / f"runs{suffix}"
    path.write_text(
        {
            ".csv": "N,D,loss\n1e7,1e9,3.5\n2e7,1e9,3.25\n",
            ".json": '[{"N": 1e7, "D": 1e9, "loss": 3.5}, {"parameters": 2e7, "tokens": 1e9, "loss": 3.25}]',
            ".jsonl": '{"N": 1e7, "D": 1e9, "loss": 3.5}\n\n{"N": 2e7, "D": 1e9, "L": 3.25}\n',
        }[suffix]
    )
    assert read_runs(path) == [Run(1e7, 1e9, 3.5), Run(2e7, 1e9, 3.25)]
    assert read_runs(path)[0].flops == 6e16


@pytest.mark.parametrize(
    "name, text, match",
    [
        ("runs.csv", "N,loss\n1e7,3.5\n", "run 1 has no tokens"),
        ("runs.csv", "N,D,loss\n1e7,1e9,3.5\n1e7,many,3.5\n", "run 2: tokens='many' is not a number"),
        ("runs.csv", "N,D,loss\n1e7,1e9,-3.5\n", "run 1: loss=-3.5 is out of range"),
        ("runs.csv", "N,D,loss\n1e7,1e9,nan\n", "run 1: loss=nan"),
        ("runs.json", "[1, 2]", "run 1 is a int"),
        ("runs.json", "{", "not valid JSON"),
        ("runs.json", "[]", "no list of runs"),
        ("runs.txt", "", "choose from .csv"),
    ],
)
def test_bad_runs_are_named(tmp_path, name, text, match):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=match):
        read_runs(tmp_path / name)


def test_missing_file():
    with pytest.raises(ValueError, match="is not a file"):
        read_runs("nowhere.csv")


@pytest.mark.parametrize(
    "options",
    [{"delta": 0}, {"delta": -1}, {"delta": float("nan")}, {"bootstrap": -1}, {"bootstrap": 1}, {"bootstrap": 2.5}]
    + [{"confidence": 0}, {"confidence": 1}, {"confidence": 95}],
)
def test_numbers_that_no_fit_has(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        fit_law(runs_of(PUBLISHED["besiroglu2024"]), **options)
