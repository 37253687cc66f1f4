"""The AutoAWQ `gemm` layout: eight 4-bit codes in one int32, along the output dimension; and halves, which unpack faster.

Notable here: columns are interleaved (0, 2, 4, 6, 1, 3, 5, 7), as the CUDA kernels of AutoAWQ read them; weights are
stored transposed, [in_features, out_features / 8]. Halves are as many bytes, each with a column of the first half of a row
and the one as far into the second, so that both are written as wide runs.
"""

import torch

PACK = 8
# Nibble i of a word holds column ORDER[i] of its block of eight (casper-hansen/AutoAWQ, awq/utils/packing_utils.py).
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack_gemm(codes):
    """Pack codes [rows, columns] with values 0..15 into int32 [rows, columns / 8].

    Raises:
        ValueError: when the number of columns is not a multiple of 8.
    """
    rows, columns = codes.shape
    if columns % PACK:
        raise ValueError(f"columns={columns} cannot be packed: a word holds 8 codes, so columns must be a multiple of 8")
    blocks = codes.to(torch.int32).view(rows, columns // PACK, PACK)
    packed = torch.zeros(rows, columns // PACK, dtype=torch.int32, device=codes.device)
    for nibble, column in enumerate(ORDER):
        packed |= blocks[:, :, column] << (4 * nibble)
    return packed


def unpack_words(packed):
    """int32 [rows, words] to int16 codes [rows, 8 * words].

    Nibbles k and k + 4 hold columns 2k and 2k + 1, so one shift and one mask leave both in place, as the two halves of a word.
    """
    shifts = torch.arange(0, 16, 4, device=packed.device, dtype=torch.int32)
    return (packed.unsqueeze(-1) >> shifts).bitwise_and_(0x000F000F).view(torch.int16).flatten(1)


def unpack_gemm(packed):
    """Inverse of `pack_gemm`: int32 [rows, words] to uint8 codes [rows, 8 * words]."""
    return unpack_words(packed).to(torch.uint8)


def to_halves(packed):
    """int32 [rows, words] to uint8 [rows, 4 * words]: byte j holds columns j (low) and j + 4 * words (high)."""
    codes = unpack_words(packed)
    half = codes.shape[1] // 2
    return (codes[:, :half] | codes[:, half:] << 4).to(torch.uint8)


def from_halves(halves):
    """Inverse of `to_halves`: uint8 [rows, bytes] to int32 [rows, bytes / 4]."""
    return pack_gemm(unpack_halves(halves))


def unpack_halves(halves):
    """uint8 [..., bytes] to uint8 codes [..., 2 * bytes]."""
    return torch.cat([halves & 0x0F, halves >> 4], dim=-1)
