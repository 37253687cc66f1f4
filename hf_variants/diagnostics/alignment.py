"""How close visual tokens are to text embeddings: distances of rows, of directions, and of geometries.

Notable here: plain tensors in, plain numbers out. What compares positions (cosines, Frobenius) is about one shared space,
as projected images and words are; what compares geometries (CKA, Procrustes) holds whatever the two spaces are, and
is what can be said of images that are read by cross-attention.
"""

import torch

MEASURES = {
    "nearest_cosine": "mean over visual tokens of the largest cosine with any text embedding of the vocabulary",
    "pair_cosine": "mean cosine of the mean visual token of an image with the embedding of its word",
    "word_share": "share of images whose mean visual token has its largest cosine, among the words, with its own",
    "frobenius": "||V - T||_F / sqrt(||V||_F^2 + ||T||_F^2) of mean visual tokens and the embeddings of their words: 0 where "
    "equal, 1 where orthogonal",
    "cka": "linear CKA of the same two matrices: 1 where equal up to rotation and scale (Kornblith et al. 2019, "
    "arXiv:1905.00414 §3)",
    "procrustes": "what remains of the centred matrices of unit norm behind the best rotation and scale, "
    "1 - ||V^T T||_*^2 (Gower 1975): 0 where equal up to both, 1 where nothing is shared",
}


@torch.no_grad()
def alignment(visual, words, vocabulary, of_image):
    """The numbers of `MEASURES`.

    Args:
        visual: [images, tokens, width], what a language model reads of each image, without delimiters.
        words: [kinds, width], the embeddings of the words that images can be named by.
        vocabulary: [ids, width], all text embeddings.
        of_image: [images], the row of `words` that names each image.

    Raises:
        ValueError: for widths that differ, fewer than three images, or fewer than two words among them.
    """
    widths = {visual.shape[-1], words.shape[-1], vocabulary.shape[-1]}
    if visual.dim() != 3 or len(widths) != 1:
        raise ValueError(
            f"visual {tuple(visual.shape)}, words {tuple(words.shape)} and vocabulary {tuple(vocabulary.shape)} must be "
            "[images, tokens, width], [kinds, width] and [ids, width] of one width"
        )
    if len(visual) < 3 or len(of_image.unique()) < 2:
        raise ValueError(f"{len(visual)} images of {len(of_image.unique())} words are too few: give 3 of 2 words at least")
    visual, words, vocabulary = visual.double(), words.double(), vocabulary.double()
    means, named = visual.mean(dim=1), words[of_image]
    centred = [matrix - matrix.mean(dim=0) for matrix in (means, named)]
    return {
        "nearest_cosine": cosines(visual.flatten(0, 1), vocabulary).amax(dim=1).mean().item(),
        "pair_cosine": torch.nn.functional.cosine_similarity(means, named).mean().item(),
        "word_share": (cosines(means, words).argmax(dim=1) == of_image).double().mean().item(),
        "frobenius": ((means - named).norm() / (means.square().sum() + named.square().sum()).sqrt()).item(),
        "cka": linear_cka(*centred),
        "procrustes": procrustes_disparity(*centred),
    }


def cosines(rows, others):
    """[n, m] cosines of rows [n, d] with others [m, d]."""
    return torch.nn.functional.normalize(rows, dim=1) @ torch.nn.functional.normalize(others, dim=1).T


def linear_cka(x, y):
    """||Y^T X||_F^2 / (||X^T X||_F ||Y^T Y||_F) of centred [n, d] and [n, e]; 0 where either has no variance."""
    scale = (x.T @ x).norm() * (y.T @ y).norm()
    return ((y.T @ x).square().sum() / scale).item() if scale > 0 else 0.0


def procrustes_disparity(x, y):
    """1 - ||X^T Y||_*^2 of centred [n, d] and [n, e], each divided by its Frobenius norm; 1 where either has no variance."""
    scale = x.norm() * y.norm()
    return 1 - min(torch.linalg.matrix_norm(x.T @ y / scale, "nuc").item(), 1.0) ** 2 if scale > 0 else 1.0
