"""Runs AutoAWQ in an interpreter of its own: what `--producer-python` is asked to execute.

    python autoawq_worker.py check           one line of JSON: versions, and the model types that AutoAWQ knows there
    python autoawq_worker.py FOLDER          FOLDER/job.json, source/, ids.safetensors -> FOLDER/logits.safetensors, output/

Notable here: nothing of this package is imported, since that interpreter need not have it; what was reached is told in lines
of JSON on standard output, whatever libraries print there goes to standard error; token ids come ready made, so that no text
is tokenized, shortened or fetched by AutoAWQ.
"""

import json
import os
import sys
from pathlib import Path


def main(arguments, tell):
    if arguments == ["check"]:
        tell(facts())
    else:
        quantize(Path(arguments[0]), tell)


def facts():
    """Versions, and the model types that both AutoAWQ and the transformers beside it know."""
    import awq
    import torch
    import transformers
    from awq.models.auto import AWQ_CAUSAL_LM_MODEL_MAP
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    versions = {"autoawq": awq.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    return {**versions, "model_types": sorted(set(AWQ_CAUSAL_LM_MODEL_MAP) & set(CONFIG_MAPPING_NAMES))}


def quantize(folder, tell):
    """Do the job that lies in `folder`."""
    import torch
    from awq import AutoAWQForCausalLM
    from awq.quantize import quantizer
    from safetensors.torch import load_file, save_file

    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    ids = load_file(str(folder / "ids.safetensors"))
    model = AutoAWQForCausalLM.from_pretrained(
        str(folder / "source"), torch_dtype=torch.float32, device_map="cpu", trust_remote_code=False
    )
    with torch.no_grad():
        logits = model.model(ids["probe"]).logits
    save_file({"logits": logits.float().contiguous()}, str(folder / "logits.safetensors"))
    tell({"event": "loaded"})
    quantizer.tqdm = lambda layers, **shown: _told(layers, tell)
    rows = ids["calibration"].tolist()
    model.quantize(
        None,
        quant_config={"zero_point": True, "q_group_size": job["group_size"], "w_bit": 4, "version": "GEMM"},
        calib_data=rows,
        max_calib_samples=len(rows),
        max_calib_seq_len=len(rows[0]),
        apply_clip=job["clip"],
        quantizer_cls=_with_copies(quantizer.AwqQuantizer),
    )
    model.save_quantized(str(folder / "output"))
    tell({"event": "written"})


def _with_copies(quantizer_class):
    """AutoAWQ's quantizer, with the weights that its search of scales goes back to in memory of their own.

    It keeps them by `.cpu()`, which copies nothing where they lie on a CPU already: its first candidate is multiplied into
    what it keeps, every other one is tried on that, and the layer stays so (autoawq 0.2.9).
    """

    class WithCopies(quantizer_class):
        def _compute_best_scale(self, x, w_mean, x_mean, module2inspect, *rest, **options):
            shared = module2inspect.state_dict
            module2inspect.state_dict = lambda: {name: tensor.clone() for name, tensor in shared().items()}
            try:
                return super()._compute_best_scale(x, w_mean, x_mean, module2inspect, *rest, **options)
            finally:
                del module2inspect.state_dict

    return WithCopies


def _told(layers, tell):
    layers = list(layers)
    for index, layer in enumerate(layers):
        yield layer
        tell({"event": "layer", "done": index + 1, "of": len(layers)})


if __name__ == "__main__":
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    main(sys.argv[1:], lambda entry: print(json.dumps(entry), file=lines, flush=True))
