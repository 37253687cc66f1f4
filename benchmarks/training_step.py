"""Training steps: forward, loss and backward on random tokens, gradients made anew each time (no optimizer)."""

from transformers import LlamaConfig

from benchmarks.case import Case, Ready
from benchmarks.pairs import SMOLLM2, models, random_ids
from hf_variants import VariantsConfig
from hf_variants.analysis import flops_per_token

_OUR_KEYS = set(SMOLLM2) - {"eos_token_id", "bos_token_id"}


def step_of(model, ids, checkpointing=False):
    """`Ready` for one step of `model` on ids [B, T]; returns the loss."""
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def run():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss.detach()

    return Ready(run, ids.numel(), lambda: model.zero_grad(set_to_none=True))


def smollm2_step(dtype, checkpointing=False, layers=30, length=1024, batch=1, **targets):
    """The case of one training step of SmolLM2-135M's shape."""
    shape = {**SMOLLM2, "num_hidden_layers": layers}
    config = LlamaConfig(**shape)

    def build(sides):
        ids = random_ids(config, batch, length)
        pair = models(config, sides, dtype)
        return {side: step_of(model, ids, checkpointing) for side, model in pair.items()}

    ours = VariantsConfig(**{key: shape[key] for key in _OUR_KEYS})
    flops = (4 if checkpointing else 3) * flops_per_token(ours, length).total * length * batch
    name = f"train_{dtype}" + ("_checkpointing" if checkpointing else "")
    title = f"training step, SmolLM2-135M shape, T={length}, {dtype}" + (", activation checkpointing" if checkpointing else "")
    return Case(name, title, build, targets=targets, flops=flops, dtype=dtype, peak=True, rounds=3, seconds=45, tolerance=2e-2)


CASES = [
    smollm2_step("fp32", speed=1.10, peak=0.70),
    smollm2_step("bf16", speed=1.10, peak=0.70),
    smollm2_step("fp32", checkpointing=True, speed=1.05, peak=0.90),
]
