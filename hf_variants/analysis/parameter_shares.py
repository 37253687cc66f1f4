"""What one device holds of each part of a model under tensor and expert parallelism, and of what kind it is.

Notable here: the same facts as `modeling/parallel_plans.py` in numbers; what that leaves whole (latents, norms over all heads,
sinks, routers) is whole here.
"""

from dataclasses import dataclass

from ..modeling.parallel_plans import splits_attention, splits_experts
from .counts import layer_sizes, lm_head_size, outer_sizes
from .memory_batch import groups_experts


@dataclass(frozen=True)
class Share:
    """Numbers of one part on one device.

    Attributes:
        part: `attention`, `cross_attention`, `mlp` (dense, routed and shared networks, and the router), `norms`, or one
            outside the layers.
        numbers: parameters on this device; `products` of them meet a token in a product.
        routed: whether it is routed experts, which expert parallelism lays out by itself.
        table: whether it is an embedding, which 8-bit optimizers leave in fp32; `small`: tensors too small for them.
        hidden_matrix: whether Muon takes it. largest: numbers of its largest matrix, of the whole model.
        frozen: whether it has neither gradient nor optimizer states.
        cast: whether autocast copies its matrix.
    """

    part: str
    numbers: float
    products: float
    routed: bool = False
    table: bool = False
    small: bool = False
    hidden_matrix: bool = False
    largest: int = 0
    frozen: bool = False
    cast: bool = True


def _shares(part, size, divisor=1, matrix_divisor=None, **kind):
    """The matrices and the vectors of a part, as two shares."""
    matrix = size.matrix / (divisor if matrix_divisor is None else matrix_divisor)
    vectors = size.vector / divisor
    found = [Share(part, matrix, matrix, **kind)] if size.matrix else []
    kind = {**kind, "hidden_matrix": False, "largest": 0, "small": not kind.get("table")}
    return found + ([Share(part, vectors, 0, **kind)] if size.vector else [])


def layer_shares(config, plan, tensor_parallel=1, expert_parallel=1):
    """The `Share`s of one layer."""
    sizes = layer_sizes(config, plan)
    heads = tensor_parallel if splits_attention(config) else 1
    hidden = {
        "hidden_matrix": True,
        "largest": config.hidden_size * max(config.num_attention_heads * config.value_head_dim, 1),
    }
    found = _shares("attention", sizes["attention"], 1, heads, **hidden)
    found += _shares("cross_attention", sizes["cross_attention"], 1, heads, **hidden)
    inner = {"hidden_matrix": True, "largest": config.hidden_size * plan.intermediate_size}
    if "dense_mlp" in sizes:
        found += _shares("mlp", sizes["dense_mlp"], 1, tensor_parallel, **inner)
    else:
        channels = tensor_parallel if splits_experts(config) and expert_parallel == 1 else 1
        # with weights of 4 bytes, since FSDP's gathered ones are never copied
        routed = {"routed": True, "cast": not groups_experts(config, 4)}
        found += _shares("mlp", sizes["router"])
        found += _shares("mlp", sizes["experts"], expert_parallel, expert_parallel * channels, **routed)
        if config.num_shared_experts:
            inner["largest"] = config.hidden_size * config.shared_expert_intermediate_size
            found += _shares("mlp", sizes["shared_experts"], 1, tensor_parallel, **inner)
    return tuple(found + _shares("norms", sizes["norms"]))


def vocabulary_divisor(config, tensor_parallel):
    """By how much tensor parallelism divides the vocabulary on the device that holds the most of it."""
    return config.vocab_size / -(-config.vocab_size // tensor_parallel)


def outer_shares(config, tensor_parallel=1, headless=False, tableless=False):
    """The `Share`s of what stands before and after the layers; a tied head is the embedding's.

    headless, tableless: without a head, without a table of tokens, as the encoder of a pair.
    """
    left_out = {*(("head_transform", "lm_head") if headless else ()), *(("embedding",) if tableless else ())}
    found, divisor = [], vocabulary_divisor(config, tensor_parallel)
    for sizes in outer_sizes(config):
        for part, size in sizes.items():
            if part in left_out:
                continue
            table = part in ("embedding", "positions", "token_types")
            split = divisor if part in ("embedding", "lm_head") else 1
            found += _shares(part, size, split, split, table=table)
    if config.tie_word_embeddings and not headless:
        found.append(Share("lm_head", 0, lm_head_size(config).matrix / divisor))
    return tuple(found)
