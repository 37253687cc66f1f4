"""Figures of a fit, of isoFLOP profiles, of a plan and of published models, written to a file."""

import numpy as np

from ..report.plot_file import save_plot
from ..report.plots import COLOURS
from .laws import FLOPS_PER_PARAMETER_TOKEN


def plot_fit(fitted, runs, path):
    """Measured losses as points, the law as a line per size, and predicted against measured beside it."""
    sizes = sorted({run.parameters for run in runs})

    def draw(axes):
        left, right = axes
        tokens = np.geomspace(min(run.tokens for run in runs), max(run.tokens for run in runs), 80)
        for index, size in enumerate(sizes):
            colour = COLOURS[index % len(COLOURS)]
            own = [run for run in runs if run.parameters == size]
            left.plot(tokens, [fitted.law.loss(size, d) for d in tokens], color=colour, linewidth=1.5, label=f"N = {size:.3g}")
            left.plot([run.tokens for run in own], [run.loss for run in own], "o", color=colour, markersize=4)
        left.set(xscale="log", xlabel="training tokens D", ylabel="loss (nats per token)", title="runs and fitted law")
        left.legend(fontsize=8, frameon=False)
        measured = [run.loss for run in runs]
        predicted = [loss + residual for loss, residual in zip(measured, fitted.residuals, strict=True)]
        ends = [min(*measured, *predicted), max(*measured, *predicted)]
        right.plot(ends, ends, ":", color="#7b8794")
        right.plot(measured, predicted, "o", color=COLOURS[0], markersize=4)
        right.set(xlabel="measured loss", ylabel="fitted loss", title="every run")

    return save_plot(draw, path, width=11, columns=2)


def plot_isoflop(result, path):
    """A parabola per budget with its runs and its minimum, and the growth of N* beside it."""

    def draw(axes):
        left, right = axes
        for index, profile in enumerate(result.profiles):
            colour = COLOURS[index % len(COLOURS)]
            n, loss = zip(*sorted(profile.points), strict=True)
            grid = np.geomspace(min(n), max(n), 80)
            c0, c1, c2 = profile.coefficients
            x = np.log10(grid)
            left.plot(grid, c0 + c1 * x + c2 * x * x, color=colour, linewidth=1.5, label=f"{profile.flops:.2g} FLOPs")
            left.plot(n, loss, "o", color=colour, markersize=4)
            left.plot([profile.parameters], [profile.loss], "v", color=colour, markersize=8)
        left.set(xscale="log", xlabel="parameters N", ylabel="loss (nats per token)", title="profiles of equal FLOPs")
        left.legend(fontsize=8, frameon=False)
        flops = [profile.flops for profile in result.profiles]
        right.plot(flops, [profile.parameters for profile in result.profiles], "o", color=COLOURS[0], label="N*")
        right.plot(flops, [profile.tokens for profile in result.profiles], "s", color=COLOURS[1], label="D*")
        if result.N_exponent is not None:
            grid = np.geomspace(min(flops), max(flops), 50)
            right.plot(
                grid, result.N_coefficient * grid**result.N_exponent, color=COLOURS[0], label=f"C^{result.N_exponent:.3f}"
            )
            right.plot(
                grid, result.D_coefficient * grid**result.D_exponent, color=COLOURS[1], label=f"C^{result.D_exponent:.3f}"
            )
        right.set(
            xscale="log", yscale="log", xlabel="training FLOPs C", ylabel="N*, D*", title="compute-optimal size and tokens"
        )
        right.legend(fontsize=8, frameon=False)

    return save_plot(draw, path, width=11, columns=2)


def plot_plan(plan, law, path):
    """Loss over size at the plan's budget, the plan and the law's optimum marked."""

    def draw(axes):
        optimum, _ = law.optimum(plan.flops)
        n = np.geomspace(min(optimum, plan.parameters) / 20, max(optimum, plan.parameters) * 20, 200)
        axes.plot(n, [law.loss(size, plan.flops / (FLOPS_PER_PARAMETER_TOKEN * size)) for size in n], color=COLOURS[0])
        axes.plot([optimum], [law.loss(optimum, plan.flops / (FLOPS_PER_PARAMETER_TOKEN * optimum))], "v", color=COLOURS[0],
                  markersize=9, label=f"compute-optimal: N = {optimum:.3g}")  # fmt: skip
        axes.plot([plan.parameters], [plan.loss], "o", color=COLOURS[1], label=f"plan: N = {plan.parameters:.3g}")
        if plan.served:
            served = plan.served
            axes.plot([served["parameters"]], [served["loss"]], "s", color=COLOURS[2],
                      label=f"cheapest to train and serve: N = {served['parameters']:.3g}")  # fmt: skip
        axes.set(xscale="log", xlabel="parameters N", ylabel="predicted loss (nats per token)",
                 title=f"what {plan.flops:.3g} FLOPs buy")  # fmt: skip
        axes.legend(fontsize=9, frameon=False)

    return save_plot(draw, path)


def plot_table(rows, path):
    """Tokens of published models over their size, and those that each law calls optimal; `rows` of `overtraining_table`."""
    rows = sorted(rows, key=lambda row: (row["parameters"], row["tokens"]))
    laws = [name for name, value in rows[0].items() if isinstance(value, dict)]
    sizes = [row["parameters"] for row in rows]

    def draw(axes):
        for index, law in enumerate(laws):
            optimal = [row[law]["optimal_tokens"] for row in rows]
            axes.plot(sizes, optimal, color=COLOURS[index], linewidth=1.5, label=f"optimal by {law.replace('_', ' ')}")
        axes.plot(sizes, [row["tokens"] for row in rows], "o", color=COLOURS[-1], label="trained on")
        for row in rows:
            beside = {"textcoords": "offset points", "xytext": (5, 4), "fontsize": 8}
            axes.annotate(row["model"], (row["parameters"], row["tokens"]), **beside)
        axes.set(xscale="log", yscale="log", xlabel="parameters N", ylabel="training tokens D")
        axes.set_title("tokens of published models against compute-optimal ones")
        axes.margins(x=0.12)
        axes.legend(fontsize=9, frameon=False)

    return save_plot(draw, path)
