"""Images of a batch and the places in the text that they belong to.

Notable here: images come in reading order, so which row an image belongs to follows from the placeholders; every disagreement
between placeholders and features is an error that names both numbers.
"""

from typing import NamedTuple

import torch


class ImageBatch(NamedTuple):
    """Images in reading order: pixels [N, C, H, W], padded below and right, and (height, width) of each, or None if full."""

    pixels: torch.Tensor
    sizes: list | None

    def size_of(self, index):
        """(height, width) in pixels of image `index`."""
        return tuple(self.pixels.shape[2:]) if self.sizes is None else self.sizes[index]

    def groups(self):
        """Images of equal size together: [(indices, pixels [n, C, h, w])]."""
        if self.sizes is None or len(set(self.sizes)) == 1:
            height, width = self.size_of(0)
            return [(list(range(len(self.pixels))), self.pixels[:, :, :height, :width])]
        found = {}
        for index, size in enumerate(self.sizes):
            found.setdefault(size, []).append(index)
        return [(indices, self.pixels[indices, :, : size[0], : size[1]]) for size, indices in found.items()]


def read_images(pixel_values, image_sizes=None, image_counts=None):
    """The `ImageBatch` of what a batch holds.

    Args:
        pixel_values: [N, C, H, W], all images in reading order; or [B, K, C, H, W], those of row b being the first
            image_counts[b] of K.
        image_sizes: [N, 2] or [B, K, 2], (height, width) of each image where some are padded below or right.
        image_counts: [B], images per row; needed by the second form where rows differ, else checked only.

    Raises:
        ValueError: for other shapes, a size beyond the pixels, or counts that do not add up.
    """
    if pixel_values.dim() == 5:
        pixel_values, image_sizes = (
            None if part is None else of_rows(part, image_counts) for part in (pixel_values, image_sizes)
        )
    if pixel_values.dim() != 4 or len(pixel_values) == 0:
        raise ValueError(
            f"pixel_values has the shape {tuple(pixel_values.shape)}; give [images, channels, height, width], or [rows, "
            "images, channels, height, width], with at least one image; leave it out where there is none"
        )
    if image_counts is not None and int(image_counts.sum()) != len(pixel_values):
        raise ValueError(
            f"image_counts={image_counts.tolist()} add up to {int(image_counts.sum())} images, but pixel_values holds "
            f"{len(pixel_values)}"
        )
    if image_sizes is None:
        return ImageBatch(pixel_values, None)
    if tuple(image_sizes.shape) != (len(pixel_values), 2):
        raise ValueError(
            f"image_sizes has the shape {tuple(image_sizes.shape)}; give (height, width) of each of {len(pixel_values)} images"
        )
    height, width = pixel_values.shape[2:]
    sizes = [tuple(size) for size in image_sizes.tolist()]
    for index, size in enumerate(sizes):
        if not (0 < size[0] <= height and 0 < size[1] <= width):
            raise ValueError(f"image_sizes[{index}]={size} does not lie within pixel_values of {height} x {width} pixels")
    return ImageBatch(pixel_values, sizes)


def of_rows(images, counts):
    """[B, K, ...] -> [N, ...], the first counts[b] of each row, or all.

    Raises:
        ValueError: for counts of another number of rows, or beyond the images of a row.
    """
    if counts is None:
        return images.flatten(0, 1)
    if len(counts) != len(images) or int(counts.max()) > images.shape[1]:
        raise ValueError(
            f"image_counts={counts.tolist()} does not fit pixel_values of {images.shape[0]} rows of {images.shape[1]} images"
        )
    kept = torch.arange(images.shape[1], device=images.device) < counts.to(images.device).unsqueeze(1)
    return images[kept]


def _spelled(lengths):
    kinds = sorted(set(lengths))
    if not lengths:
        return "none"
    return (
        f"{kinds[0]} each" if len(kinds) == 1 else f"{', '.join(map(str, lengths[:8]))}{', ...' if len(lengths) > 8 else ''}"
    )


def images_per_row(placeholders, lengths, counts=None):
    """How many images each row holds.

    Args:
        placeholders: list of the number of image tokens in each row.
        lengths: list of the number of tokens of each image, in reading order.
        counts: [B] as the batch says it, or None.

    Raises:
        ValueError: where placeholders and image tokens differ, in the batch or in a row; both numbers are named.
    """
    if sum(placeholders) != sum(lengths):
        raise ValueError(
            f"the text holds {sum(placeholders)} image tokens, but the {len(lengths)} images of pixel_values need "
            f"{sum(lengths)} ({_spelled(lengths)}); write them as the processor does"
        )
    found, start = [], 0
    for row, wanted in enumerate(placeholders):
        end, total = start, 0
        while total < wanted:
            total, end = total + lengths[end], end + 1
        if total != wanted:
            raise ValueError(
                f"row {row} holds {wanted} image tokens, which is no whole number of its images: the next {end - start} "
                f"need {total}; give the images in reading order"
            )
        found.append(end - start)
        start = end
    if counts is not None and counts.tolist() != found:
        raise ValueError(
            f"image_counts={counts.tolist()}, but the image tokens of the rows are those of {found} images; give the images "
            "in reading order"
        )
    return found
