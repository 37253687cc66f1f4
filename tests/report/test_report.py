"""The report is one escaped, self-contained file that says what the blocks say."""

import re
from html.parser import HTMLParser

import pytest

from hf_variants.report import (
    Cards,
    Code,
    Figure,
    Paragraph,
    Samples,
    Section,
    Table,
    bar_figure,
    extension_table,
    facts_table,
    line_figure,
    loss_figure,
    position_figure,
    quantization_table,
    render_report,
    write_report,
)
from hf_variants.report.blocks import format_cell
from hf_variants.report.plots import spread

HOSTILE = "<script>alert('x')</script> & \"quoted\""


def buckets(*perplexities):
    edges = [0, 64, 128, 256]
    return [
        {"start": start, "end": end, "perplexity": value}
        for start, end, value in zip(edges, edges[1:], perplexities, strict=False)
    ]


def every_block():
    return [
        Paragraph(HOSTILE),
        Code(HOSTILE),
        Cards([(HOSTILE, 28.314, HOSTILE)], how=HOSTILE),
        Table([HOSTILE, "n"], [[HOSTILE, 1234567], ["b", None]], HOSTILE, HOSTILE, best=0),
        loss_figure([(0, 8.0), (10, 5.0)], [(10, 5.5)], {"unigram": 6.2}, HOSTILE, HOSTILE),
        position_figure({"none": buckets(30, 400, 2000), "yarn": buckets(31, 33, 36)}, {"yarn": buckets(29, 28, 27)}, 64),
        bar_figure({"bf16": 28.3, "AWQ": 28.7}, "Perplexity", "perplexity"),
        Samples([{"source": HOSTILE, "prompt": HOSTILE, "text": HOSTILE}], how=HOSTILE),
    ]


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.names = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_self_contained_well_formed_and_escaped(tmp_path):
    path = write_report(
        tmp_path / "deep" / "report.html", [Section(HOSTILE, every_block(), HOSTILE)], HOSTILE, HOSTILE, HOSTILE
    )
    text = path.read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(text)
    assert not tags.open and "script" not in tags.names and "link" not in tags.names
    assert all(address.startswith(("data:image/", "#")) for address in tags.addresses)
    assert HOSTILE not in text and text.count("&lt;script&gt;") >= 13
    assert "1,234,567" in text and "28.31" in text and "How obtained" in text
    assert not list(path.parent.glob("*.partial*"))


def test_same_blocks_give_the_same_page():
    pages = {re.sub(r"\s+", " ", render_report([Section("a", every_block())])) for _ in range(2)}
    assert len(pages) == 1


def test_png_and_svg_figures_carry_their_type():
    assert Figure(b"\x89PNG\r\n", "t").mime == "image/png"
    assert line_figure({"a": [(1, 2.0), (2, None)]}, "t", "x", "y").mime == "image/svg+xml"


def test_tables_compute_what_they_show():
    table = quantization_table(
        [
            {"name": "bf16", "perplexity": 20.0, "bytes": 8_000_000, "tokens_per_second": 100.0},
            {"name": "AWQ", "perplexity": 21.0, "bytes": 2_000_000, "tokens_per_second": None},
        ]
    )
    assert table.rows[0][2] == 0 and table.rows[1][2] == pytest.approx(5.0)
    assert table.rows[1][3:] == [2.0, 0.25, None]
    assert table.numeric == [False, True, True, True, True, True]
    extended = extension_table({"none": buckets(1, 2, 90), "yarn": buckets(1, 2, 3)}, {"yarn": buckets(1, 2, 2.5)})
    assert extended.best == 2 and extended.columns[1:] == ["1–64", "65–128", "129–256"]
    assert facts_table({"learning_rate": 0.1}).rows == [["learning rate", 0.1]]


def test_cells_are_readable():
    shown = [format_cell(value) for value in (None, 1234567, 12345.6, 123.456, 3.14159, 0.000123, 0.0, True, float("nan"))]
    assert shown == ["–", "1,234,567", "12,346", "123.5", "3.14", "0.000123", "0.00", "True", "not a number"]


def test_names_of_lines_do_not_overlap():
    assert spread([0.1, 0.5], 0.1) == [0.1, 0.5]
    for heights in ([0.9, 0.95, 0.97, 1.0], [0.0, 0.0, 0.0], [0.5] * 5):
        moved = spread(heights, 0.06)
        assert all(later - earlier > 0.0599 for earlier, later in zip(moved, moved[1:], strict=False))
        assert min(moved) >= -1e-9 and max(moved) <= 1 + 1e-9


def test_bad_blocks_are_refused():
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table(["a"], [[1, 2]])
    with pytest.raises(ValueError, match="lacks \\['text'\\]"):
        Samples([{"source": "a", "prompt": "b"}])
    with pytest.raises(ValueError, match="triple"):
        Cards([("a", 1)])
    with pytest.raises(ValueError, match="no points"):
        line_figure({"a": [(1, None)]}, "t", "x", "y")
    with pytest.raises(ValueError, match="no bars"):
        bar_figure({}, "t", "y")
    with pytest.raises(ValueError, match="at least one record"):
        quantization_table([])
    with pytest.raises(ValueError, match="buckets of 'b' differ"):
        extension_table({"a": buckets(1, 2, 3), "b": buckets(1, 2)})
    with pytest.raises(ValueError, match="must be a Section"):
        render_report(["text"])
    with pytest.raises(ValueError, match="holds a str"):
        render_report([Section("a", ["text"])])
