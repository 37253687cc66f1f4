"""Proof that a native checkpoint and one of ours are the same model: what a conversion has to pass before it is kept.

Notable here: three comparisons, none of which holds a large model in memory. Every weight goes through the rules both ways and
has to come back in every bit; both models run on the same tokens, in fp32 and layer by layer, and every hidden state and the
logits are compared; where model and gradients fit in the memory allowed, one loss and every gradient too. Weights are compared
in a second thread while the models run.
"""

import math
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch

from hf_variants.convert.beside import beside
from hf_variants.convert.config_map import frozen_last_row
from hf_variants.convert.registry import find_family
from hf_variants.convert.skeletons import filled, layers_of, streaming, tied_names
from hf_variants.convert.stages import Stage, same_bits
from hf_variants.convert.weight_files import byte_size
from hf_variants.convert.weight_rules import apply_rules, plan_rules

# What fp32 arithmetic in another order may differ by, relative to the largest value compared (at least 1).
TOLERANCE = 1e-5
_ROWS, _TOKENS = 2, 12
# Of a model too large for gradients, which is run for its toggles alone: its weights are compared by themselves.
_FEWEST_ROWS, _FEWEST_TOKENS = 1, 8


@dataclass
class Proof:
    """What was compared and found.

    Attributes:
        weights: tensors compared bitwise, both ways.
        tokens: [rows, tokens per row] of the forward pass.
        layers: max |difference| of the hidden states after each layer, and the largest value there.
        logits: max |difference| of the logits, and the largest value.
        loss: |difference| of the losses, None where gradients were not compared.
        gradients: max |difference| of all gradients relative to the largest of their tensor (at least 1), or None.
        gradients_left_out: why they were not compared, or None.
    """

    weights: int = 0
    tokens: tuple = (_ROWS, _TOKENS)
    compared_in: str = "float32"
    tolerance: float = TOLERANCE
    layers: list = field(default_factory=list)
    logits: dict = field(default_factory=dict)
    loss: float | None = None
    gradients: float | None = None
    gradients_left_out: str | None = None

    def to_dict(self):
        return asdict(self)


class ProofError(ValueError):
    """The two models differ; says where."""


def prove(source, target, rules, memory, progress=None, weights=None, there=None):
    """Compare two checkpoints.

    Args:
        source, target: `sides.Side` of either, one native, one ours; the source is run first.
        rules: weight rules of the family.
        memory: bytes that the comparison of gradients may take.
        progress: called as progress(what, done, total), from two threads.
        weights: waits until `same_weights` has compared them, and gives their number; None compares those of the two sides.
        there: there(side) waits until a side can be run, and gives it; None has both run as they are.

    Returns:
        Proof.

    Raises:
        ProofError: naming the first tensor, layer or output that differs, and by how much.
    """
    tell, there = progress or (lambda what, done, total: None), there or (lambda side: side)
    if weights is None:
        with beside(lambda running: same_weights(source, target, rules, tell, running.check)) as comparing:
            return prove(source, target, rules, memory, progress, comparing.result, there)
    native, ours = in_order(source, target)
    found, head = Proof(), native.head(find_family(native.config.model_type))
    found.gradients_left_out = _why_no_gradients(ours.weights, head, memory)
    ids = _token_ids(native, ours, found.gradients_left_out)
    found.tokens = tuple(ids.shape)
    models = None
    tell("comparing layers", 0, 2)
    if found.gradients_left_out is None:
        models = [filled(side.fresh_skeleton(torch.float32), side.weights) for side in map(there, (native, ours))]
        # the cross-entropy alone: natively a balance loss is taken over all layers at once, here of each layer
        models[0].config.output_router_logits = False
        runs = [_run(model, ids, head) for model in models]
    else:
        if all(map(_runs_in_place, (source, target))):
            # both run on one file, which is mapped once
            source.weights.keep()
        runs = [_run_streaming(there(side), ids, head) for side in (source, target)]
        source.weights.forget()
        runs = runs[::-1] if source.is_ours else runs
    tell("comparing layers", 1, 2)
    found.weights = weights()
    try:
        _compare_runs(found, *runs)
        tell("comparing layers", 2, 2)
        if found.gradients_left_out is None:
            _compare_gradients(found, *models, ids, rules, head)
    except ProofError as error:
        if broken := _not_finite(native.weights):
            raise ProofError(
                f"{len(broken)} weights hold NaN or infinite values, so no output can be compared: {broken[:8]}"
            ) from error
        raise
    return found


def _not_finite(weights):
    """Names of the weights that hold a NaN or an infinity."""
    return [name for name in weights if weights.meta[name].is_floating_point() and not weights[name].isfinite().all()]


def in_order(source, target):
    """(the native side, ours)."""
    return (target, source) if source.is_ours else (source, target)


def _why_no_gradients(weights, head, memory):
    """Why gradients are not compared, or None."""
    if head == "base":
        return "the stack alone has no loss"
    needed = 4 * 4 * sum(tensor.numel() for tensor in weights.meta.values())
    return None if needed <= memory else f"they would take {needed / 2**30:.1f} GiB, {memory / 2**30:.1f} are allowed"


def _runs_in_place(side):
    """Whether a model runs on the very tensors that lie there, which takes no memory."""
    floats = (tensor.dtype for tensor in side.weights.meta.values() if tensor.is_floating_point())
    return side.weights.all_lie() and all(dtype == torch.float32 for dtype in floats)


def _run_streaming(side, ids, head):
    # constants such as an embedding's scale have the dtype that the model was built in
    empty = side.skeleton() if side.dtype == torch.float32 else side.fresh_skeleton(torch.float32)
    with streaming(empty, side.weights) as model:
        return _run(model, ids, head)


def same_weights(source, target, rules, tell, check):
    """Each side's weights, taken through the rules, are the other side's. Returns how many tensors were compared.

    Args:
        source, target, rules: as in `prove`.
        tell: called as tell(what, done, total) after each tensor.
        check: called before each, to raise where the comparison is no longer wanted.

    Raises:
        ProofError: naming the first tensor that differs.
    """
    native, ours = in_order(source, target)
    native_weights, our_weights = native.weights.again(), ours.weights.again()
    plans = [(native_weights, our_weights, False), (our_weights, native_weights, True)]
    stages = [Stage(plan_rules(rules, source, ours.config, back), source) for source, _, back in plans]
    for made, (_, target, _) in zip(stages, plans, strict=True):
        if made.meta.keys() != target.meta.keys():
            different = sorted(made.meta.keys() ^ target.meta.keys())
            raise ProofError(f"{len(different)} tensors have no counterpart: {different[:8]}")
    # a tensor that is only renamed is its own way back
    wanted = [list(stages[0]), [name for name in stages[1] if not stages[1].only_renamed(name)]]
    done, total = 0, sum(byte_size(made.meta[name]) for made, names in zip(stages, wanted, strict=True) for name in names)
    for made, names, (_, target, back) in zip(stages, wanted, plans, strict=True):
        for name in names:
            check()
            # a selection bias that ours keeps in fp32 and some native classes do not
            if not same_bits(made[name].to(target.meta[name].dtype), target[name]):
                where = "ours to native" if back else "native to ours"
                raise ProofError(f"{name} is not bitwise equal to what the rules make of the other side ({where})")
            done += byte_size(made.meta[name])
            tell("comparing weights", done, total)
    return len(native.weights) + len(ours.weights)


def _token_ids(native, ours, gradients_left_out):
    config, generator = ours.config, torch.Generator().manual_seed(0)
    rows, tokens = (_ROWS, _TOKENS) if gradients_left_out is None else (_FEWEST_ROWS, _FEWEST_TOKENS)
    length = min(tokens, config.max_position_embeddings or tokens)
    size = min(stack.vocab_size for stack in config.stacks)
    ids = torch.randint(0, size, (rows, length), generator=generator)
    if len(config.stacks) > 1 and config.pad_token_id is not None:
        # a pad that no mask hides has a position in some families (M2M-100's has none natively)
        ids = torch.where(ids == config.pad_token_id, (config.pad_token_id + 1) % size, ids)
    if (row := frozen_last_row(native.config)) is not None:
        # which trains here and not there, as the report says
        ids = torch.where(ids == row, row - 1, ids)
    return ids


def _inputs(ids, head):
    """Decoders see plain rows; encoders are told that every token is real, whatever their pad is."""
    if head == "causal_lm":
        return {"input_ids": ids, "use_cache": False}
    inputs = {"input_ids": ids, "attention_mask": (ids >= 0).long()}
    if head != "seq2seq_lm":
        return inputs
    # T5Gemma takes ids that are its pad for pads of the decoder too
    decoded = {"decoder_input_ids": ids, "decoder_attention_mask": inputs["attention_mask"]}
    return {**inputs, **decoded, "use_cache": False}


def _labels(ids, head):
    if head == "question_answering":
        return {"start_positions": torch.zeros(len(ids), dtype=torch.long), "end_positions": torch.ones(len(ids)).long()}
    if head == "sequence_classification":
        return {"labels": torch.zeros(len(ids), dtype=torch.long)}
    return {"labels": torch.zeros_like(ids) if head == "token_classification" else ids}


def _result(output):
    """The tensor that a head computes, or the last states of a bare stack."""
    names = ("logits", "start_logits", "last_hidden_state")
    return next(output[name] for name in names if name in output)


@contextmanager
def _results_by_name(model):
    """Within, `model` returns results by name, whatever its config asks for: native classes fail on tuples of their own."""
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    before = [(config, config.return_dict) for config in configs.values() if hasattr(config, "return_dict")]
    for config, _ in before:
        config.return_dict = True
    try:
        yield
    finally:
        for config, asked in before:
            config.return_dict = asked


@torch.no_grad()
def _run(model, ids, head):
    """(output of each layer [rows, tokens, hidden], logits [rows, ...])."""
    states = []
    keep = lambda module, arguments, output: states.append(output[0] if isinstance(output, (tuple, list)) else output)  # noqa: E731
    handles = [layer.register_forward_hook(keep) for layer in layers_of(model)]
    try:
        with _results_by_name(model):
            logits = _result(model.eval()(**_inputs(ids, head)))
    finally:
        for handle in handles:
            handle.remove()
    return [state.reshape(*ids.shape, -1) for state in states], logits


def _compare_runs(found, native, ours):
    (native_states, native_logits), (our_states, our_logits) = native, ours
    if len(native_states) != len(our_states):
        raise ProofError(f"{len(native_states)} native layers ran and {len(our_states)} of ours")
    pairs = enumerate(zip(native_states, our_states, strict=True))
    found.layers = [_compare(f"the hidden states after layer {index}", *pair) for index, pair in pairs]
    found.logits = _compare("the logits", native_logits, our_logits)


def _compare(what, theirs, mine):
    """{"difference", "largest"} of two tensors. Raises ProofError beyond the tolerance, and where either is not finite."""
    difference, largest = (theirs - mine).abs().max().item(), theirs.abs().max().item()
    if not (math.isfinite(largest) and difference <= TOLERANCE * max(1.0, largest)):
        raise ProofError(
            f"{what} differ: max |difference| = {difference:.3g} where values reach {largest:.3g}; "
            f"{TOLERANCE * max(1.0, largest):.3g} is allowed"
        )
    return {"difference": difference, "largest": largest}


@torch.enable_grad()
def _compare_gradients(found, native, ours, ids, rules, head):
    labels = _labels(ids, head)
    for model in (native, ours):
        # the kind of problem that a classifier reads from its labels
        model.config.problem_type = "single_label_classification" if head == "sequence_classification" else None
    with _results_by_name(native), _results_by_name(ours):
        losses = [model(**_inputs(ids, head), **labels).loss for model in (native, ours)]
    for loss in losses:
        loss.backward()
    found.loss = _compare("the losses", *(loss.detach() for loss in losses))["difference"]
    expected = apply_rules(rules, _gradients(native), ours.config)
    found.gradients = 0.0
    for name, gradient in _gradients(ours).items():
        pair = _compare(f"the gradients of {name}", expected[name], gradient)
        found.gradients = max(found.gradients, pair["difference"] / max(1.0, pair["largest"]))


def _gradients(model):
    tied = tied_names(model, model.config)
    parameters = {n: p for n, p in model.named_parameters(remove_duplicate=False) if n not in tied}
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
