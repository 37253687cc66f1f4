"""What one device computes on when memory is planned: rows, tokens and bytes of a number.

Notable here: an encoder-decoder has two of these, one for each stack, since their rows differ in length.
"""

from dataclasses import dataclass

# dtype -> bytes of the residual stream, bytes of what enters a product, whether products cast their inputs (autocast)
PRECISIONS = {"float32": (4, 4, False), "bfloat16": (2, 2, False), "mixed": (4, 2, True)}


@dataclass(frozen=True)
class Batch:
    """What runs on one device: `rows` x `length` tokens in one of `PRECISIONS`; heads and channels split over
    `tensor_parallel`, experts over `expert_parallel` devices that share a batch.

    frozen: whether the weights want no gradient, so that it only passes through. masked: whether rows bring masks of their
    own. gathered: whether weights come in the dtype of products, as FSDP gathers them.
    """

    rows: int
    length: int
    dtype: str = "float32"
    tensor_parallel: int = 1
    expert_parallel: int = 1
    frozen: bool = False
    masked: bool = False
    gathered: bool = False

    @property
    def tokens(self):
        return self.rows * self.length

    @property
    def stream_bytes(self):
        return PRECISIONS[self.dtype][0]

    @property
    def product_bytes(self):
        return PRECISIONS[self.dtype][1]

    @property
    def casts(self):
        return PRECISIONS[self.dtype][2]

    @property
    def weight_bytes(self):
        """Bytes of a number of a weight as a layer finds it."""
        return self.product_bytes if self.gathered else self.stream_bytes


def groups_experts(config, weight_bytes):
    """Whether routed experts are multiplied at once: by a kernel that autocast passes by and that wants rows of 16 bytes."""
    return not (config.hidden_size * weight_bytes % 16 or config.moe_intermediate_size * weight_bytes % 16)


def norm_statistics(config, batch, norms, groups=1):
    """Mean and deviation that LayerNorm keeps in fp32, `groups` of them per token and norm."""
    return 8 * batch.tokens * norms * groups if config.norm_type == "layernorm" else 0


def norm_input_bytes(config, batch, size):
    """Bytes of a number that a norm keeps of an input of `size`: LayerNorm in fp32 keeps a copy."""
    copies = config.norm_type == "layernorm" and (config.norm_weight_in_fp32 or batch.casts)
    return max(size, 4) if copies else size
