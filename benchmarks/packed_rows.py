"""Packed against padded rows of the same documents: tokens of documents per second, half of the padded batch being pads."""

import torch

from benchmarks.case import OURS, Case, Ready
from benchmarks.work import training_flops
from hf_variants import VariantsConfig, VariantsForCausalLM

LENGTHS = (512, 384, 256, 256, 192, 192, 128, 128)  # 2048 tokens, in 8 padded rows of 512: 50% pads
CONFIG = VariantsConfig(
    vocab_size=8192,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=4,
    num_attention_heads=9,
    num_key_value_heads=3,
    pad_token_id=0,
)


def batches():
    """(padded batch, packed batch) of the same documents."""
    draw = torch.Generator().manual_seed(0)
    documents = [torch.randint(1, CONFIG.vocab_size, (length,), generator=draw) for length in LENGTHS]
    width = max(LENGTHS)
    padded = torch.stack([torch.nn.functional.pad(part, (0, width - len(part))) for part in documents])
    mask = (padded != 0).long()
    row = torch.cat(documents).unsqueeze(0)
    positions = torch.cat([torch.arange(length) for length in LENGTHS]).unsqueeze(0)
    labels = row.clone()
    labels[
        0, torch.tensor(LENGTHS).cumsum(0)[:-1]
    ] = -100  # the first token of a document is not predicted from the one before
    one = {"input_ids": padded, "attention_mask": mask, "labels": padded.masked_fill(mask == 0, -100)}
    return one, {"input_ids": row, "position_ids": positions, "labels": labels}


def build(sides):
    torch.manual_seed(0)
    model, made = VariantsForCausalLM(CONFIG).train(), {}
    for side, batch in zip(("padded", OURS), batches(), strict=True):

        def run(batch=batch):
            loss = model(**batch, use_cache=False).loss
            loss.backward()
            return loss.detach()

        made[side] = Ready(run, sum(LENGTHS), lambda: model.zero_grad(set_to_none=True))
    return {side: made[side] for side in sides}


CASES = [
    Case(
        "packing",
        "packed training against padded, the same documents, half of the padded batch being pads",
        build,
        flops=lambda: sum(training_flops(CONFIG, 1, length) for length in LENGTHS),
        sides=("padded", OURS),
        targets={"speed": 1.8},
        rounds=4,
        seconds=20.0,
        tolerance=1e-4,
    )
]
