"""The images of the digits task: scikit-learn's copy of the optical recognition test set, 1,797 hand-written digits of 8 x 8
pixels in 17 grey levels (Alpaydin & Kaynak 1998, UCI Machine Learning Repository).

Notable here: they come with the package, so nothing is downloaded; which images are held out is decided by a seed, with an
equal share of each digit.
"""

from typing import NamedTuple

import numpy as np

DIGITS = 10
LEVELS = 16


class Images(NamedTuple):
    """Grey images [n, 8, 8] as float32 from 0 to 1, and their digits [n]."""

    pixels: np.ndarray
    labels: np.ndarray

    def of_digit(self, digit):
        """Indices of the images of one digit."""
        return np.flatnonzero(self.labels == digit)


def load_digits(held_out=0.2, seed=0):
    """(training images, held-out images) as `Images`.

    Args:
        held_out: share of the images of each digit that is held out.
        seed: decides which.

    Raises:
        ValueError: without scikit-learn, or for a share that leaves either side without an image of some digit.
    """
    try:
        from sklearn.datasets import load_digits as load
    except ImportError:
        raise ValueError("the digits task needs scikit-learn, which is not installed: pip install scikit-learn") from None
    found = load()
    pixels, labels = (found.images / LEVELS).astype(np.float32), found.target.astype(np.int64)
    generator, chosen = np.random.default_rng(seed), []
    for digit in range(DIGITS):
        of_digit = generator.permutation(np.flatnonzero(labels == digit))
        count = round(held_out * len(of_digit))
        if not 0 < count < len(of_digit):
            raise ValueError(
                f"held_out={held_out} holds out {count} of the {len(of_digit)} images of the digit {digit}; choose a share "
                "that leaves some on either side"
            )
        chosen.append(of_digit[:count])
    out = np.zeros(len(labels), dtype=bool)
    out[np.concatenate(chosen)] = True
    return Images(pixels[~out], labels[~out]), Images(pixels[out], labels[out])


def enlarge(pixels, side):
    """Images [n, 8, 8] as [n, 1, side, side], bilinear."""
    import torch

    grey = torch.as_tensor(pixels).unsqueeze(1)
    return torch.nn.functional.interpolate(grey, size=(side, side), mode="bilinear", align_corners=False)


def jiggle(images, generator, turn=0.2, stretch=0.15, shift=0.12, shear=0.15, warp=0.1):
    """Images [n, 1, h, w] each turned, stretched, sheared, shifted and warped a little at random.

    Warping moves every point by a smooth field, bicubic between 4 x 4 normal draws: an elastic distortion, after Simard et
    al. 2003 (Best Practices for Convolutional Neural Networks Applied to Visual Document Analysis, §2).

    Args:
        generator: a torch.Generator.
        turn: largest angle in radians. stretch: largest change of the scale, of height and width apart. shift: largest
            shift, of half the side. shear: largest tangent of the slant. warp: standard deviation of the field, of half the
            side.
    """
    import torch

    def draw(size):
        return (torch.rand(len(images), generator=generator) * 2 - 1) * size

    angle, slant, wide, high = draw(turn), draw(shear), 1 + draw(stretch), 1 + draw(stretch)
    cos, sin = angle.cos(), angle.sin()
    across = torch.stack((cos / wide, (cos * slant - sin) / high, draw(shift)), 1)
    down = torch.stack((sin / wide, (sin * slant + cos) / high, draw(shift)), 1)
    grid = torch.nn.functional.affine_grid(torch.stack((across, down), 1), list(images.shape), align_corners=False)
    field = torch.randn(len(images), 2, 4, 4, generator=generator) * warp
    field = torch.nn.functional.interpolate(field, size=images.shape[-2:], mode="bicubic", align_corners=True)
    return torch.nn.functional.grid_sample(images, grid + field.permute(0, 2, 3, 1), align_corners=False)


def to_picture(image, side=None):
    """One image [h, w] from 0 to 1 as a grey PIL image, enlarged to `side` pixels where given."""
    from PIL import Image

    picture = Image.fromarray((np.clip(np.asarray(image), 0, 1) * 255).round().astype(np.uint8), mode="L")
    return picture if side is None else picture.resize((side, side), Image.BILINEAR)
