"""`hf-variants scaling study | fit | isoflop | plan | table`: runs, scaling laws from them, and what a budget buys."""

import json
from typing import Annotated

import typer

from ..jobs.specs import ScalingStudySpec
from .console import announce, announce_files, check_plot, console
from .recipe_command import add_recipe_command

Runs = Annotated[str, typer.Argument(help="Runs: .csv, .json or .jsonl with parameters, tokens, loss (and flops).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Plot = Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")]
Number = float | None


def add_to(app):
    commands = typer.Typer(no_args_is_help=True, help="Fit scaling laws to runs, and plan training from a budget.")
    summary = "Train sizes x token counts x seeds, write the table of their losses, and fit a law to it."
    add_recipe_command(commands, "study", ScalingStudySpec, study, summary)
    for name, command in (("fit", fit), ("isoflop", isoflop), ("plan", plan), ("table", table)):
        commands.command(name)(command)
    app.add_typer(commands, name="scaling")


def study(spec):
    from ..jobs.scaling import scaling_study
    from ..scaling import FittedLaw, fit_law

    def fit_with_progress(points, bootstrap):
        return _with_progress("resampling", lambda tick: fit_law(points, bootstrap=bootstrap, progress=tick), quiet=False)

    result = scaling_study(spec, announce, fit_with_progress)
    if "law" in result:
        _show_law(FittedLaw.from_dict(result["law"]), len(result["runs"]))
        announce_files(result["law_file"], result["plot"])


def fit(
    runs: Runs,
    output: Annotated[str | None, typer.Option(help="Write the law to this .json file, for `plan --law`.")] = None,
    delta: Annotated[float, typer.Option(help="Where the Huber loss turns linear, in log loss.")] = 1e-3,
    bootstrap: Annotated[int, typer.Option(help="Resampled fits for the intervals; 0: none.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
    plot: Plot = None,
    as_json: Json = False,
):
    """Fit L(N, D) = E + A/N^alpha + B/D^beta, with bootstrap intervals."""
    check_plot(plot)
    from ..scaling import fit_law, read_runs
    from ..scaling.fit import check_runs
    from ..scaling.law_files import check_law_path, write_law

    if output is not None:
        check_law_path(output)
    points = read_runs(runs)
    check_runs(points)
    fitted = _with_progress("resampling", lambda tick: fit_law(points, delta, bootstrap, seed=seed, progress=tick), as_json)
    if output is not None:
        write_law(fitted, output)
    if plot:
        from ..scaling.plots import plot_fit

        plot_fit(fitted, points, plot)
    if as_json:
        print(json.dumps(fitted.as_dict(), indent=2))
        return
    _show_law(fitted, len(points))
    _say(fitted.warnings, output, plot)


def isoflop(runs: Runs, plot: Plot = None, as_json: Json = False):
    """Parabolas of loss over size at equal FLOPs, and how the best size grows with the budget."""
    check_plot(plot)
    from ..scaling import fit_isoflop, read_runs

    result = fit_isoflop(read_runs(runs))
    if plot:
        from ..scaling.plots import plot_isoflop

        plot_isoflop(result, plot)
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
        return
    rows = [(f"{p.flops:.3g}", f"{p.parameters:.4g}", f"{p.tokens:.4g}", f"{p.loss:.4f}") for p in result.profiles]
    _table("minima of the profiles", ("FLOPs", "N*", "D*", "loss"), rows)
    if result.N_exponent is not None:
        for name in ("N", "D"):
            coefficient, exponent = (getattr(result, f"{name}_{part}") for part in ("coefficient", "exponent"))
            announce(f"{name}* = {coefficient:.3g} C^{exponent:.3f}")
    left_out = [f"{flops:.3g} FLOPs left out: {why}" for flops, why in result.left_out.items()]
    _say([*left_out, *result.warnings], None, plot)


def plan(
    law: Annotated[
        str, typer.Option(help="hoffmann2022, besiroglu2024, or a file written by `scaling fit`.")
    ] = "besiroglu2024",
    flops: Annotated[Number, typer.Option(help="Budget: training operations.")] = None,
    hours: Annotated[Number, typer.Option(help="Budget: hours of the hardware below.")] = None,
    money: Annotated[Number, typer.Option(help="Budget: cost at the price below.")] = None,
    devices: Annotated[Number, typer.Option(help="Accelerators.")] = None,
    peak_tflops: Annotated[Number, typer.Option(help="Of one accelerator, dense, at the training dtype.")] = None,
    mfu: Annotated[Number, typer.Option(help="Model FLOPs utilisation, 0 to 1.")] = None,
    price_per_hour: Annotated[Number, typer.Option(help="Of one accelerator.")] = None,
    parameters: Annotated[Number, typer.Option(help="Fix N; the budget decides the tokens.")] = None,
    tokens: Annotated[Number, typer.Option(help="Fix D; the budget decides the size.")] = None,
    config: Annotated[str | None, typer.Option(help="Plan for a preset, config file or checkpoint, with exact FLOPs.")] = None,
    inference_tokens: Annotated[Number, typer.Option(help="Tokens to be served over the model's life.")] = None,
    unique_tokens: Annotated[Number, typer.Option(help="Distinct training tokens at hand.")] = None,
    quality: Annotated[float, typer.Option(help="Worth of one token of this data beside one of the law's.")] = 1.0,
    batch_tokens: Annotated[Number, typer.Option(help="Tokens per optimizer step; the rounded guide where not given.")] = None,
    sequence_length: Annotated[int, typer.Option(help="Tokens per row.")] = 2048,
    plot: Plot = None,
    as_json: Json = False,
):
    """Size, tokens, steps and loss that a budget buys under a law."""
    check_plot(plot)
    from ..scaling import Budget, FittedLaw, plan_training
    from ..scaling.law_files import read_law

    known = read_law(law)
    budget = Budget.of(flops, hours, money, devices, peak_tflops, mfu, price_per_hour)
    if config is not None:
        from ..convert.config_source import read_config

        config = read_config(config)
    result = plan_training(
        known, budget, parameters, tokens, inference_tokens, unique_tokens, quality, batch_tokens, sequence_length, config
    )
    if plot:
        from ..scaling.plots import plot_plan

        plot_plan(result, known.law if isinstance(known, FittedLaw) else known, plot)
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
        return
    _table("plan", ("", ""), _plan_rows(result), header=False)
    _say(result.warnings, None, plot)


def table(plot: Plot = None, as_json: Json = False):
    """Published models beside what laws call compute-optimal for their size."""
    check_plot(plot)
    from ..scaling import PUBLISHED, overtraining_table

    rows = overtraining_table()
    if plot:
        from ..scaling.plots import plot_table

        plot_table(rows, plot)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    laws = ("rule_of_20", *PUBLISHED)
    columns = ("model", "tokens", *(f"{name.replace('_', ' ')}: optimal D (factor)" for name in laws))
    cells = [
        (
            row["model"],
            f"{row['tokens']:.3g}",
            *(f"{row[n]['optimal_tokens']:.3g} ({row[n]['overtraining']:.3g} x)" for n in laws),
        )
        for row in rows
    ]
    _table("tokens trained on, against compute-optimal ones", columns, cells)
    announce_files(plot)


def _show_law(fitted, count):
    law = fitted.law
    optimum = {"N_exponent": law.beta / (law.alpha + law.beta), "D_exponent": law.alpha / (law.alpha + law.beta)}
    rows = []
    for name in ("E", "A", "alpha", "B", "beta", *optimum):
        low, high = fitted.intervals.get(name, (None, None))
        value = optimum.get(name, getattr(law, name, None))
        rows.append((name, f"{value:.4g}", "" if low is None else f"{low:.4g} to {high:.4g}"))
    _table(f"law of {count} runs", ("constant", "value", f"{fitted.confidence:.0%} interval"), rows)


def _plan_rows(plan):
    rows = [
        ("training FLOPs", f"{plan.flops:.4g}"),
        ("parameters N", f"{plan.parameters:,.4g}"),
        ("tokens D", f"{plan.tokens:,.4g}"),
        ("tokens per parameter", f"{plan.tokens_per_parameter:.4g}"),
        ("over-training (D / best D of this N)", f"{plan.overtraining:.3g} x"),
        (
            "predicted loss",
            f"{plan.loss:.4f}" + (f" ({plan.interval[0]:.4f} to {plan.interval[1]:.4f})" if plan.interval else ""),
        ),
        ("batch (tokens)", f"{plan.batch_tokens:,}"),
        ("optimizer steps", f"{plan.steps:,}"),
    ]
    if plan.effective_tokens != plan.tokens:
        rows.insert(3, ("tokens that they are worth", f"{plan.effective_tokens:,.4g}"))
    for name, guide in plan.hyperparameters.items():
        rows.append(
            (f"guide {name}", f"learning rate {guide['learning_rate']:.3g}, batch {guide['batch_tokens']:,.3g} tokens")
        )
    if plan.hours is not None:
        rows.append(("hours", f"{plan.hours:,.4g}"))
    if plan.money is not None:
        rows.append(("cost", f"{plan.money:,.4g}"))
    if plan.justified_by_inference is not None:
        rows.append(("justified from served tokens", f"{plan.justified_by_inference:.4g}"))
    if plan.served:
        served = plan.served
        rows.append(("cheapest to serve at this loss", f"N {served['parameters']:.4g}, D {served['tokens']:.4g}"))
        rows.append(
            ("its operations (training + serving)", f"{served['training_flops']:.4g} + {served['inference_flops']:.4g}")
        )
    if plan.exact:
        rows.append(("exact training FLOPs per token", f"{plan.exact['training_flops_per_token']:.4g}"))
        rows.append(("6 N for comparison", f"{plan.exact['six_n']:.4g}"))
    rows.append(("law", plan.law["source"]))
    return rows


def _with_progress(text, work, quiet):
    if quiet:
        return work(None)
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(text, total=None)
        return work(lambda done, total: progress.update(task, completed=done, total=total))


def _table(title, columns, rows, header=True):
    from rich.table import Table

    view = Table(title=title, title_justify="left", show_header=header)
    for column in columns:
        view.add_column(column, overflow="fold")
    for row in rows:
        view.add_row(*row)
    console.print(view)


def _say(warnings, output, plot):
    for text in dict.fromkeys(warnings):
        announce(f"note: {text}")
    announce_files(output, plot)
