"""What a generated token of encoder-decoders costs against the length of the encoder, as lines."""

from .plot_file import save_plot, short_name
from .plots import COLOURS


def plot_cross(profiles, path):
    """FLOPs and cache bytes over encoder length, and milliseconds of a step where measured; `profiles` are `CrossProfile`s."""
    measured = all("seconds" in point for profile in profiles for point in profile.points)
    panels = [
        ("FLOPs of a token", "MFLOPs", lambda point: point["flops"] / 1e6),
        ("caches", "MiB", lambda point: (point["self_bytes"] + point["cross_bytes"]) / 2**20),
        *([("a step, measured", "milliseconds", lambda point: 1e3 * point["seconds"])] if measured else []),
    ]

    def draw(axes):
        for axis, (title, unit, value) in zip(axes, panels, strict=True):
            for index, profile in enumerate(profiles):
                states = [point["states"] for point in profile.points]
                colour = COLOURS[index % len(COLOURS)]
                axis.plot(
                    states,
                    [value(point) for point in profile.points],
                    "o-",
                    color=colour,
                    label=short_name(profile.name),
                    ms=4,
                )
            axis.set(title=title, ylabel=unit, xlabel="tokens of the encoder", xlim=(0, None), ylim=(0, None))
        axes[0].legend(fontsize=8, frameon=False)

    return save_plot(draw, path, width=4.6 * len(panels), height=3.8, columns=len(panels))
