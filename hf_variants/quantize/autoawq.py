"""AutoAWQ as a producer: a native checkpoint and our calibration tokens go to its interpreter, its folder comes back.

Notable here: before it quantizes, its interpreter puts a few tokens through the checkpoint, and the logits must be ours, so
that an older transformers that reads a config otherwise is found out; what it wrote is measured and checked as ours is.
"""

import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import nn

from .batches import is_batches, probe_batch, sees_images
from .calibration import DEFAULT_LENGTH, check_enough, pack_calibration
from .checks import check_shapes
from .formats import FORMATS
from .imported_layers import ImportedLayers
from .layerwise import build_layer, open_stream, outputs_of, shell_of
from .producers import INSTALL, ProducerFailed, find_interpreter
from .stacks import has_experts, stacks_of
from .store import leftovers
from .whole_model import adopt_layers

_WORKER = Path(__file__).with_name("autoawq_worker.py")
# AutoAWQ clips so many outputs at a time, and none of the Linears whose names hold one of these.
_CLIPPED, _NEVER_CLIPPED = 64, ("q_", "k_", "query", "key", "Wqkv")
# What float32 in two releases of transformers may differ by, relative to the largest logit.
_TOLERANCE = 1e-3
_SHOWN_ERROR = 1500


def quantize_by_autoawq(
    model,
    calibration,
    target,
    python,
    *,
    group_size=64,
    clip=True,
    calibration_length=None,
    eval_ids=None,
    dtype=None,
    progress=None,
):
    """Have AutoAWQ quantize a member of the family that is a native type which it knows.

    Args:
        model: VariantsForCausalLM in full precision; its layers are let go.
        calibration: token ids, as in `quantize_awq`.
        target: folder that the result is meant for; what is exchanged lies hidden beside it, and is removed at the end.
        python: interpreter that has AutoAWQ.
        eval_ids, dtype, progress: as in `quantize_awq`.

    Returns:
        (QuantizedModel, what to tell of the producer in the report).

    Raises:
        ValueError: for an interpreter without AutoAWQ, or a model, shape or calibration that it cannot take.
        ProducerFailed: where its transformers reads the checkpoint otherwise, where it fails (with the end of what it said),
            or where what it wrote is not whole.
    """
    facts = interpreter_facts(find_interpreter(python))
    native = _native_of(model, facts)
    windows, numbers = _calibration(model, calibration, calibration_length)
    _check_widths(native, group_size, clip)
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    for other in leftovers(target):
        shutil.rmtree(other, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-autoawq-", dir=target.parent))
    try:
        _write_job(folder, native, facts, {"group_size": group_size, "clip": clip}, windows, probe_batch(model)["input_ids"])
        expected = _full_logits(model)
        _run(python, folder, lambda: _compare(folder, expected, facts), progress)
        layers = ImportedLayers(folder / "output", model, native, group_size)
        told = {name: facts[name] for name in ("autoawq", "transformers", "torch")}
        measured = {"eval_ids": eval_ids, "dtype": dtype, "progress": progress}
        result = adopt_layers(model, layers, group_size=group_size, calibration=numbers, **measured)
        return result, {"producer": {"name": "autoawq", **told, "clip": clip}}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.lru_cache(maxsize=8)
def interpreter_facts(python):
    """What is installed beside an interpreter: {"autoawq", "transformers", "torch", "model_types"}.

    Raises:
        ValueError: where AutoAWQ cannot be imported there.
    """
    with tempfile.TemporaryDirectory() as folder:
        worker = shutil.copy(_WORKER, folder)
        try:
            done = subprocess.run([python, worker, "check"], cwd=folder, env=_environment(), capture_output=True, text=True)
        except OSError as error:
            raise ValueError(f"producer_python={python!r} cannot be run: {error}") from error
    try:
        facts = json.loads(done.stdout.strip().splitlines()[-1])
        if done.returncode == 0 and "model_types" in facts:
            return facts
    except (ValueError, IndexError, TypeError):
        pass
    raise ValueError(
        f"producer_python={python!r} has no AutoAWQ that can be imported; install it there ({INSTALL}). It said: "
        f"{_end_of(done.stderr or done.stdout)}"
    )


def _environment():
    """Variables of the other interpreter: none that would bring in packages of this one, and no network."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")}
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


def _native_of(model, facts):
    """The native model that AutoAWQ will read. Raises ValueError where it knows none."""
    from ..convert import to_native

    there = f"producer='autoawq': autoawq {facts['autoawq']} with transformers {facts['transformers']}"
    if model.config.is_encoder_decoder or sees_images(model.config) or not hasattr(model, "lm_head"):
        raise ValueError(f"{there} quantizes decoders, which {type(model).__name__} is not; use producer='own'")
    if has_experts(model.config):
        raise ValueError(
            f"{there} names experts otherwise than the native classes do that transformers has now; use producer='own'"
        )
    native = to_native(model)
    if native.config.model_type not in facts["model_types"]:
        raise ValueError(
            f"{there} takes no model_type={native.config.model_type!r}, the native type of this model; use producer='own', or "
            f"convert it to one of {facts['model_types']} (docs/convert.md)"
        )
    return native


def _calibration(model, given, length):
    if is_batches(given):
        raise ValueError("producer='autoawq' is calibrated on token ids, not on batches; give token ids")
    length = min(length or DEFAULT_LENGTH, model.config.max_position_embeddings)
    windows, dropped = pack_calibration(given, length, model.config.vocab_size)
    check_enough(windows.numel() + dropped, "calibration")
    rows, length = windows.shape
    return windows, {"windows": rows, "window_tokens": length, "tokens": rows * length, "dropped_tokens": dropped}


def _check_widths(native, group_size, clip):
    head = native.get_output_embeddings()
    linears = {name: module for name, module in native.named_modules() if isinstance(module, nn.Linear) and module is not head}
    check_shapes(linears, group_size, FORMATS[4])
    odd = [f"{name} ({module.out_features})" for name, module in linears.items() if module.out_features % _CLIPPED]
    odd = [name for name in odd if not any(part in name.rpartition(".")[2] for part in _NEVER_CLIPPED)]
    if clip and odd:
        raise ValueError(
            f"clip=True: AutoAWQ clips {_CLIPPED} outputs at a time, which do not divide the outputs of {odd[:6]}; give "
            "clip=false, or use producer='own'"
        )


def _write_job(folder, native, facts, settings, windows, probe):
    from safetensors.torch import save_file

    native.save_pretrained(folder / "source")
    if int(facts["transformers"].split(".")[0]) < 5:
        file = folder / "source" / "config.json"
        older = older_config(json.loads(file.read_text(encoding="utf-8")))
        file.write_text(json.dumps(older, indent=2), encoding="utf-8")
    save_file({"calibration": windows.cpu(), "probe": probe.cpu()}, folder / "ids.safetensors")
    (folder / "job.json").write_text(json.dumps(settings), encoding="utf-8")
    shutil.copy(_WORKER, folder / "worker.py")


def older_config(config):
    """A `config.json` in the words of transformers 4: `rope_theta` and `rope_scaling` by themselves, `torch_dtype`."""
    config = dict(config)
    rope = dict(config.pop("rope_parameters", None) or {})
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            config[name] = rope.pop(name)
    if rope and rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = rope
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    return config


@torch.no_grad()
def _full_logits(model):
    """Logits of the probe of a model in float32, one layer of it at a time."""
    shell, batch = shell_of(model, {"quant_method": "awq"}), probe_batch(model)
    [stack] = stacks_of(shell)
    stream = open_stream(shell, [batch])
    for _, plan in stack.names():
        stream.advance(build_layer(shell, model, stack, plan), plan.index)
    for parameter in shell.parameters():
        parameter.data = parameter.data.float()
    return outputs_of(shell, batch, stream.hidden[0]).float().cpu()


def _compare(folder, expected, facts):
    from safetensors.torch import load_file

    logits = load_file(folder / "logits.safetensors")["logits"]
    same_shape = logits.shape == expected.shape
    difference = float((logits - expected).abs().max()) if same_shape else float("inf")
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ProducerFailed(
            f"transformers {facts['transformers']} beside AutoAWQ reads this checkpoint otherwise: max |difference| of logits "
            f"= {difference}; use producer='own'"
        )


def _run(python, folder, loaded, progress):
    """Run the worker; `loaded` is called when it has put the probe through the full model, and may stop it by an error."""
    reached = None
    with open(folder / "said.txt", "w", encoding="utf-8") as said:
        command = [find_interpreter(python), str(folder / "worker.py"), str(folder)]
        process = subprocess.Popen(command, cwd=folder, env=_environment(), stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            for line in process.stdout:
                entry = _entry_of(line)
                reached = entry["event"]
                if reached == "loaded":
                    loaded()
                elif reached == "layer" and progress is not None:
                    progress(entry["done"], entry["of"], f"AutoAWQ, layer {entry['done'] - 1}")
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0 or reached != "written":
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        said = _end_of((folder / "said.txt").read_text(encoding="utf-8", errors="replace"))
        raise ProducerFailed(f"AutoAWQ {how} after {reached or 'nothing'}; it said: {said}")


def _entry_of(line):
    try:
        entry = json.loads(line)
        return {**entry, "event": entry["event"]}
    except (ValueError, TypeError, KeyError) as error:
        raise ProducerFailed(
            f"the interpreter of AutoAWQ put out what is no line of its account: {line.strip()[:200]!r}"
        ) from error


def _end_of(text):
    """The end of what a process said, in one line."""
    shown = " ".join(text.split())
    return "nothing" if not shown else shown if len(shown) <= _SHOWN_ERROR else "... " + shown[-_SHOWN_ERROR:]
