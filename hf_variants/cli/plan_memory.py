"""`hf-variants plan-memory`: what each device holds at the height of a training step, or while generating."""

import json
from typing import Annotated

import typer

from .config_words import config_words, note_quantized
from .console import announce_files, check_plot, console
from .describe import SOURCE_HELP, Json
from .recipe_command import SETTINGS


def add_to(app):
    app.command("plan-memory", context_settings=SETTINGS)(plan_memory)


def plan_memory(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the config, also as --key value.")
    ] = None,
    purpose: Annotated[str, typer.Option(help="train or generate.")] = "train",
    length: Annotated[int | None, typer.Option(help="Tokens of a row; default: the context.")] = None,
    encoder_length: Annotated[
        int | None, typer.Option(help="Tokens that an encoder reads for a row; default: as many as the row.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="Images in a row of a vision-language model; default: one.")] = None,
    trains: Annotated[
        list[str] | None,
        typer.Option(help="tower, bridge, text: parts that are trained; several times. Default: all of them."),
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of a micro-batch on each data-parallel rank.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, or mixed (fp32 weights, autocast): the default of training.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adamw, adamw_8bit, muon or sgd.")] = "adamw",
    checkpointing: Annotated[
        bool | None, typer.Option(help="Activation checkpointing; both are shown where neither is asked for.")
    ] = None,
    accumulation: Annotated[int, typer.Option(help="Micro-batches per optimizer step.")] = 1,
    devices: Annotated[int, typer.Option(help="All of them.")] = 1,
    sharding: Annotated[
        list[str] | None, typer.Option(help="ddp, zero1, zero2, fsdp; several times. Default: all of them; generate: ddp.")
    ] = None,
    tensor_parallel: Annotated[int, typer.Option(help="Devices that share the heads and channels of a layer.")] = 1,
    expert_parallel: Annotated[int, typer.Option(help="Devices that share the routed experts.")] = 1,
    memory: Annotated[str | None, typer.Option(help="Of one device, such as 80GB, to be told what fits.")] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    plot: Annotated[str | None, typer.Option(help="Write the figure to this .png, .svg or .pdf file.")] = None,
    as_json: Json = False,
):
    """Weights, gradients, optimizer, activations and cache on each device at the height of a step: DDP, ZeRO, FSDP, TP, EP."""
    check_plot(plot)
    from ..convert.config_source import read_any_config

    config = read_any_config(model, **config_words(context, words))
    note_quantized(model)
    from ..analysis.memory_plan import plan_memory as plan_config
    from ..analysis.memory_table import memory_table, parse_bytes

    options = {
        **{"purpose": purpose, "length": length, "encoder_length": encoder_length, "rows": rows},
        **{"images": images, "trains": trains or None},
        **{"optimizer": optimizer, "accumulation": accumulation},
        **{"dtype": dtype or ("mixed" if purpose == "train" else "bfloat16"), "devices": devices, "device": device},
        **{"tensor_parallel": tensor_parallel, "expert_parallel": expert_parallel},
        "memory": None if memory is None else parse_bytes(memory),
    }
    all_of_them = ["ddp", "zero1", "zero2", "fsdp"] if devices > tensor_parallel and purpose == "train" else [None]
    shardings = list(dict.fromkeys(sharding or all_of_them))
    both = [False, True] if checkpointing is None and purpose == "train" else [bool(checkpointing)]
    plans = [plan_config(config, sharding=kind, checkpointing=each, **options) for kind in shardings for each in both]
    if plot:
        from ..report.memory_plot import plot_memory

        plot_memory(plans, plot, title=model)
    if as_json:
        print(json.dumps(plans, indent=2))
        return
    console.print(memory_table(plans, title=model))
    announce_files(plot)
