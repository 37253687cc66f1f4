"""The report of a vision-language run: accuracy by kind of question, losses, alignment, attention, and answers with images."""

from io import BytesIO

from ..diagnostics.alignment import MEASURES
from ..report import Cards, Code, Figure, Section, Table, bar_figure, line_figure, write_report
from ..report.plots import STYLE
from .answering import SPLITS
from .examples import KINDS

LOADING = """\
import hf_variants
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("{folder}")
processor = AutoProcessor.from_pretrained("{folder}")
text = "<image> <image> what is the sum of both digits ? answer :"
inputs = processor(images=[first, second], text=text, return_tensors="pt")
print(processor.decode(model.generate(**inputs, max_new_tokens=4)[0], skip_special_tokens=True))
"""


def write_vision_report(path, spec, result, held_out):
    """Write the page; returns its path. `held_out` are the `Images` that the shown examples are about."""
    sections = [_overview(spec, result), _accuracy(result), _training(spec, result)]
    sections += [_alignment(result), _attention(spec, result)]
    if result["examples"]:
        sections.append(_answers(result, held_out))
    sections.append(Section("Loading the model", [Code(LOADING.format(folder=result["model"]))]))
    return write_report(path, sections, "Vision-language training", f"hand-written digits, bridge: {_bridge(spec)}")


def _bridge(spec):
    return spec.bridge.get("bridge", "projection")


def _overview(spec, result):
    headline = result["accuracies"][next(iter(SPLITS))]
    items = [
        ("held-out answers", f"{headline['all']:.1%}", f"of {headline['answers']}, images and phrases unseen"),
        ("training time", f"{result['seconds'] / 60:.1f} min", "steps of all phases, without evaluation"),
        ("parameters", f"{result['parameters']:,}", "tower, bridge and language model"),
        ("tokens per image", result["tokens_per_image"], f"bridge {_bridge(spec)}"),
    ]
    return Section("Overview", [Cards(items)], "From new weights to answers about one or two images.")


def _accuracy(result):
    kinds = [kind for kind in KINDS if kind in next(iter(result["accuracies"].values()))]
    rows = [
        [name, *[f"{found[kind]:.1%}" for kind in kinds], f"{found['all']:.1%}"]
        for name, found in result["accuracies"].items()
    ]
    how = "share of answers that are right as a whole; greedy generation by the model as read back from its folder"
    table = Table(["questions about", *kinds, "all"], rows, "Accuracy by kind of question", how)
    headline = result["accuracies"][next(iter(SPLITS))]
    bars = bar_figure({kind: 100 * headline[kind] for kind in kinds}, next(iter(SPLITS)), "right answers (%)", how)
    return Section("Accuracy", [table, bars], "Held-out phrases are combinations that no training question has.")


def _training(spec, result):
    rows = [
        [phase.name, phase.reads, ", ".join(phase.trains), done["trained"], phase.steps, phase.batch_size, done["seconds"]]
        for phase, done in zip(spec.phases, result["phases"], strict=True)
    ]
    columns = ["phase", "reads", "trains", "trained parameters", "steps", "batch", "seconds"]
    blocks = [Table(columns, rows, "Phases", "in order, on the same weights; what is not trained is frozen")]
    series, start = {}, 0
    for phase, done in zip(spec.phases, result["phases"], strict=True):
        series[phase.name] = [(start + line["step"], line["loss"]) for line in done["log"]]
        start += phase.steps
    if any(series.values()):
        how = "mean of each logged span; of a phase on labels over digits, else over the words of answers"
        blocks.append(line_figure(series, "Loss of the phases", "optimizer step", "cross-entropy (nats)", how))
    return Section("Training", blocks)


def _alignment(result):
    rows = [[name, result["alignment"][name], meaning] for name, meaning in MEASURES.items()]
    how = "held-out images against the embeddings of the names of their digits, at the end"
    blocks = [Table(["measure", "value", "what it is"], rows, "Visual and text tokens", how)]
    series, start = {name: [] for name in MEASURES}, 0
    for done in result["phases"]:
        for line in done["measures"]:
            for name in MEASURES:
                series[name].append((start + line["step"], line[name]))
        start += max((line["step"] for line in done["measures"]), default=0)
    if any(series.values()):
        how = "measured on the same held-out images; steps of the phases that read images, one after the other"
        blocks.append(line_figure(series, "Alignment while training", "optimizer step", "measure", how))
    return Section("Alignment", blocks, "Whether what the language model reads of an image comes close to the word for it.")


def _attention(spec, result):
    columns = ["layer", "entropy", "bound log(N + j)", "fullest / bound", "share on image tokens", "share if even"]
    rows = [
        [r["layer"], r["entropy"], r["bound"], r["fullest"], r["image_share"], r["even_share"]] for r in result["attention"]
    ]
    how = "text tokens behind an image, means over heads; entropies in nats; held-out questions"
    blocks = [Table(columns, rows, "Self-attention", how)]
    crossed = [r for r in result["attention"] if r["attention_gate"] is not None]
    if crossed:
        columns = ["layer", "tanh(alpha), attention", "tanh(alpha), feed-forward", "entropy", "bound log(states seen)"]
        rows = [[r["layer"], r["attention_gate"], r["mlp_gate"], r["cross_entropy"], r["cross_bound"]] for r in crossed]
        blocks.append(Table(columns, rows, "Cross-attention to images", how))
    elif len(result["attention"]) > 1:
        series = {name: [(r["layer"], r[field]) for r in result["attention"]] for name, field in _SHARES.items()}
        blocks.append(line_figure(series, "Attention to image tokens by layer", "layer", "share of the weight", how))
    return Section("Attention", blocks, "A text token sees N image tokens and j of text, so log(N + j) bounds its entropy.")


_SHARES = {"measured": "image_share", "if even": "even_share"}


def _answers(result, held_out):
    how = "held-out images and phrases; wrong answers are shown first where there are any"
    rows = sorted(result["examples"], key=lambda row: row["given"] == row["answer"])
    wrong = sum(row["given"] != row["answer"] for row in rows)
    lead = f"{wrong} of the {len(rows)} shown are wrong, chosen on purpose; the rates stand above."
    figure = Figure(answers_picture(rows, held_out), "Questions, images, answers", how, "Images with questions and answers")
    return Section("Answers", [figure], lead)


def answers_picture(rows, images):
    """SVG of examples, one per line: their images, the question, the answer given and the right one."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        canvas = Canvas(figsize=(8.4, 0.72 * len(rows)))
        FigureCanvasSVG(canvas)
        grid = canvas.add_gridspec(len(rows), 3, width_ratios=[1, 1, 12])
        for line, row in enumerate(rows):
            for place, index in enumerate(row["images"]):
                axes = canvas.add_subplot(grid[line, place])
                axes.imshow(images.pixels[index], cmap="gray_r", vmin=0, vmax=1)
                axes.set_axis_off()
            axes = canvas.add_subplot(grid[line, 2])
            axes.set_axis_off()
            right = row["given"] == row["answer"]
            said = row["given"] if right else f"{row['given'] or 'nothing'} (right: {row['answer']})"
            axes.text(0, 0.68, row["prompt"], fontsize=9, va="center", color="#3e4c59")
            axes.text(0, 0.22, said, fontsize=10, va="center", weight="bold", color="#009E73" if right else "#D55E00")
        stream = BytesIO()
        canvas.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()
