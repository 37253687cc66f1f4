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
    own.
    """

    rows: int
    length: int
    dtype: str = "float32"
    tensor_parallel: int = 1
    expert_parallel: int = 1
    frozen: bool = False
    masked: bool = False

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


def norm_statistics(config, batch, norms, groups=1):
    """Mean and deviation that LayerNorm keeps in fp32, `groups` of them per token and norm."""
    return 8 * batch.tokens * norms * groups if config.norm_type == "layernorm" else 0
