"""The figures of a page, empty: ``page.js`` fills them with what is to be seen at the time."""

from __future__ import annotations

import importlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from overflow_analyzer.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_ID: Final = re.compile(r'"p\d+"')
MISSING: Final = "a page's pictures need Bokeh and Jinja2; they come with the extra: pip install 'overflow-trace[html]'"


def library() -> Path:
    """Return the file of the library that draws the pictures in the browser.

    Raises:
        MissingExtraError: Bokeh is not installed.
    """
    from pathlib import Path

    return Path(_bokeh("bokeh").__file__).parent / "server" / "static" / "js" / "bokeh.min.js"


def _bokeh(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(MISSING) from None


def pictures(names: tuple[str, ...]) -> list[Any]:
    """Return figures as Bokeh embeds them; the target of each is the element of its name.

    Args:
        names: Of ``FIGURES``.

    Raises:
        MissingExtraError: Bokeh is not installed.
    """
    json_item = _bokeh("bokeh.embed").json_item
    text = json.dumps([json_item(FIGURES[name](name), name) for name in names])
    # Bokeh counts its models for as long as the process lives: counted anew, the same page has the same bytes.
    numbers: dict[str, int] = {}
    found: list[Any] = json.loads(_ID.sub(lambda one: f'"p{numbers.setdefault(one[0], len(numbers))}"', text))
    return found


def palettes() -> dict[str, list[str]]:
    """Return the colours of cells, the strongest first, for light and for dark pages: their lightness alone tells."""
    colours = _bokeh("bokeh.palettes")
    # Neither ends in the colour of the page, which means that nothing was recorded.
    return {
        "light": list(colours.interp_palette(colours.YlOrRd9, 64)),
        "dark": [colours.Inferno256[at] for at in range(252, 60, -3)],
    }


def _figure(name: str, **options: Any) -> Any:
    """Return a figure over batches: dragging zooms, a double click shows all."""
    models = _bokeh("bokeh.models")
    drag = models.BoxZoomTool(dimensions="width")
    figure = _bokeh("bokeh.plotting").figure(
        name=name,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools=[drag, models.TapTool(), *options.pop("tools", [])],
        min_border=0,
        background_fill_color=None,
        border_fill_color=None,
        x_range=models.Range1d(0, 1),
        **options,
    )
    figure.toolbar.active_drag = drag
    figure.toolbar.autohide = True
    figure.xaxis.ticker = models.FixedTicker(ticks=[])
    figure.xaxis.axis_label = "batch"
    return figure


def _source(name: str, *columns: str) -> Any:
    return _bokeh("bokeh.models").ColumnDataSource({column: [] for column in columns}, name=name)


def _image(name: str, **options: Any) -> Any:
    """Return a picture of cells: an image, cells that are not finite above it, and a frame around one cell."""
    models = _bokeh("bokeh.models")
    figure = _figure(name, y_range=models.Range1d(1, 0), **options)
    mapper = models.LinearColorMapper(palette=["#000000"], low=0, high=1, nan_color="rgba(0, 0, 0, 0)")
    cells = models.ColumnDataSource(
        {"image": [np.zeros((1, 1), np.float32)], **{name: [0] for name in ("x", "y", "dw", "dh")}}, name="cells"
    )
    figure.image("image", "x", "y", "dw", "dh", source=cells, color_mapper=mapper)
    figure.quad(
        "left", "right", "top", "bottom", source=_source("nonfinite", "left", "right", "top", "bottom", "hatch"),
        name="nonfinite", hatch_pattern="hatch", hatch_scale=6, line_width=1,
    )  # fmt: skip
    figure.text(
        "x", "y", "text", source=_source("marks", "x", "y", "text"),
        name="marks", text_align="center", text_baseline="middle", text_font_size="11px", text_font_style="bold",
    )  # fmt: skip
    figure.quad(
        "left", "right", "top", "bottom", source=_source("cursor", "left", "right", "top", "bottom"),
        name="cursor", fill_color=None, line_width=2,
    )  # fmt: skip
    figure.grid.visible = False
    return figure


def _heat(name: str) -> Any:
    models = _bokeh("bokeh.models")
    figure = _image(name, frame_height=18)
    figure.yaxis.visible = False
    bar = models.ColorBar(
        color_mapper=figure.renderers[0].glyph.color_mapper,
        orientation="horizontal", height=10, padding=8, major_tick_line_width=0, background_fill_color=None, name="bar",
    )  # fmt: skip
    figure.add_layout(bar, "below")
    return figure


def _ranks(name: str) -> Any:
    figure = _image(name, frame_height=60)
    figure.yaxis.axis_label = "rank"
    figure.yaxis.ticker = _bokeh("bokeh.models").FixedTicker(ticks=[])
    figure.scatter(
        "x", "y", source=_source("firsts", "x", "y"), name="firsts", marker="inverted_triangle", size=9, line_width=1
    )
    return figure


def _lines(name: str, frame_height: int) -> Any:
    """Return curves on a logarithmic axis of powers of 2, with a point for each figure, which says it."""
    models = _bokeh("bokeh.models")
    hover = models.HoverTool(
        tooltips=[("", "@label"), ("batch", "@batch"), ("abs max", "@value")], mode="mouse", renderers=[]
    )
    figure = _figure(
        name, frame_height=frame_height, tools=[hover], min_border_left=64,
        y_axis_type="log", y_range=models.Range1d(0.5, 2),
    )  # fmt: skip
    ticker = models.LogTicker(base=2, mantissas=[1], desired_num_ticks=frame_height // 40)
    figure.yaxis.ticker = ticker
    figure.yaxis.formatter.ticker = ticker
    figure.ygrid.ticker = ticker
    figure.xgrid.visible = False
    figure.vspan("x", source=_source("gaps", "x"), name="gaps", line_dash="dotted", line_width=1)
    figure.hspan("y", source=_source("limits", "y"), name="limits", line_dash="dashed", line_width=1.5)
    figure.text(
        "x", "y", "text", source=_source("limit_names", "x", "y", "text"),
        name="limit_names", text_baseline="bottom", text_align="left", text_font_size="11px", x_offset=4, y_offset=-2,
    )  # fmt: skip
    figure.multi_line(
        "xs", "ys", source=_source("lines", "xs", "ys", "color", "dash", "label"),
        name="lines", line_color="color", line_dash="dash", line_width=1.5,
    )  # fmt: skip
    points = figure.scatter(
        "x", "y", source=_source("points", "x", "y", "color", "marker", "label", "batch", "value"),
        name="points", fill_color="color", line_color="color", marker="marker", size=5,
    )  # fmt: skip
    hover.renderers = [points]
    figure.line("x", "y", source=_source("fit", "x", "y"), name="fit", line_dash="dotdash", line_width=2)
    figure.text(
        "x", "y", "text", source=_source("marks", "x", "y", "text"),
        name="marks", text_align="center", text_baseline="top", text_font_size="12px", text_font_style="bold",
    )  # fmt: skip
    figure.scatter(
        "x", "y", source=_source("steps", "x", "y"), name="steps", marker="dash", angle=1.5708, size=7,
    )  # fmt: skip
    return figure


FIGURES: Final[dict[str, Callable[[str], Any]]] = {
    "heat": _heat,
    "curves": lambda name: _lines(name, 300),
    "values": lambda name: _lines(name, 120),
    "ranks": _ranks,
}
"""By the name of the element that holds it."""
