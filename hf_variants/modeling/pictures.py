"""Pictures of any kind as PIL images of one mode, or an error that says which of them is none.

Notable here: arrays and tensors say their range by their type, bytes from 0 to 255 and numbers from 0 to 1, and nothing is
guessed or clipped; 16-bit greys are scaled, where PIL would clip them.
"""

import torch

MODES = {1: "L", 3: "RGB"}


def pil():
    """The module PIL.Image.

    Raises:
        ImportError: where Pillow is not installed, naming the command that installs it.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("pictures need Pillow, which is not installed: pip install pillow") from None
    return Image


def to_pictures(images, num_channels):
    """PIL images of mode L (1 channel) or RGB (3), of a list of what `to_picture` takes.

    Raises:
        ValueError: naming the index of an image that is none.
    """
    return [to_picture(image, num_channels, f"image {index}") for index, image in enumerate(images)]


def to_picture(image, num_channels, name="image"):
    """A PIL image of mode L or RGB.

    Args:
        image: a PIL image of any mode but "F"; the path of a file; an array or tensor [H, W], [H, W, C] or [C, H, W] with 1, 3
            or 4 channels, of bytes, or of numbers from 0 to 1, which are rounded to bytes.
        name: how errors call it.

    Raises:
        ValueError: for a file that is missing or damaged, another shape, or numbers outside of that range.
    """
    module = pil()
    if isinstance(image, str) or hasattr(image, "__fspath__"):
        image = _opened(module, image, name)
    if not isinstance(image, module.Image):
        image = module.fromarray(_as_bytes(image, name).numpy())
    try:
        return _converted(module, image, MODES[num_channels], name)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{name} cannot be read: {error}; the file is truncated or damaged") from error


def _opened(module, path, name):
    try:
        return module.open(path)
    except FileNotFoundError as error:
        raise ValueError(f"{name} is the file {path!s}, which does not exist") from error
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{name} is the file {path!s}, which is no picture or damaged: {error}") from error


def _converted(module, image, mode, name):
    if 0 in image.size:
        raise ValueError(f"{name} has {image.size[0]} x {image.size[1]} pixels; a picture has at least one")
    if image.mode == "F":
        raise ValueError(f"{name} is of mode 'F', numbers without a known range; give an array of numbers from 0 to 1")
    if image.mode.startswith("I"):
        # PIL clips what does not fit into a byte: 16-bit greys are scaled instead
        greys = torch.frombuffer(bytearray(image.convert("I").tobytes()), dtype=torch.int32).view(image.height, image.width)
        greys = greys if int(greys.max()) <= 255 else greys * 255 // 65535
        image = module.fromarray(greys.to(torch.uint8).numpy())
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        # what is transparent is white, as on a page
        image = image.convert("RGBA")
        page = module.new("RGBA", image.size, "white")
        page.alpha_composite(image)
        image = page
    return image.convert(mode)


def _as_bytes(image, name):
    """[H, W] or [H, W, C] of bytes."""
    try:
        values = image.detach().cpu() if isinstance(image, torch.Tensor) else torch.tensor(image)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is a {type(image).__name__}; give a PIL image, a path, an array or a tensor") from error
    if values.dim() == 3 and values.shape[2] not in (1, 3, 4) and values.shape[0] in (1, 3, 4):
        values = values.permute(1, 2, 0)
    if values.dim() not in (2, 3) or (values.dim() == 3 and values.shape[2] not in (1, 3, 4)) or 0 in values.shape:
        raise ValueError(
            f"{name} has the shape {tuple(values.shape)}; give [height, width], [height, width, channels] or [channels, "
            "height, width], with 1, 3 or 4 channels"
        )
    if values.dim() == 3 and values.shape[2] == 1:
        values = values.squeeze(2)
    if values.dtype == torch.bool:
        values = values.float()
    if values.dtype == torch.uint8:
        return values.contiguous()
    low, high = float(values.min()), float(values.max())
    if not values.dtype.is_floating_point or not (low >= 0 and high <= 1):
        raise ValueError(
            f"{name} holds {values.dtype} from {low:g} to {high:g}; give bytes (uint8), or floating-point numbers from 0 to 1"
        )
    return (values.float() * 255).round().to(torch.uint8).contiguous()
