"""How many rows of logits the fused loss makes at a time.

Notable here: plain numbers, so that what plans memory without a model asks the same function as the loss itself.
"""

# bytes of one chunk of logits
CHUNK_BYTES = {"cpu": 1 << 26, "cuda": 1 << 28}
# a chunk may be larger by one part in so many, rather than one more be needed
SPARE = 4


def chunk_rows(rows, vocabulary, width, size, device, sums_weights):
    """Rows of a chunk: all of one size, for a short one at the end would cost as much as any in passes over the head.

    Args:
        rows: tokens whose logits are needed.
        vocabulary, width: shape of the head's matrix.
        size: bytes of a number.
        device: "cpu" or "cuda".
        sums_weights: whether the gradient of the head's matrix is summed up over the chunks, in fp32.
    """
    row_bytes, limit = vocabulary * size, CHUNK_BYTES[device]
    if sums_weights and size < 4 and rows * row_bytes <= limit + 4 * vocabulary * width:
        # one chunk needs no fp32 sum of the head's gradient, which would take as much memory
        return max(1, rows)
    chunks = max(1, -((limit // SPARE - rows * row_bytes) // limit))
    return max(1, -(-rows // chunks))
