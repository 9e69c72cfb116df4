"""The page of a run in a real browser."""

from __future__ import annotations

import base64
import math
import re
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer import find_first_nonfinite, open_trace, render_report
from tests.browser.pages import (
    FIXTURES,
    HOSTILE_NAMES,
    page_of,
    write_hostile_names,
    write_many_ranks,
    write_values,
)
from tests.traces import frame, tensor, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser.chromium import Browser

GROWING = FIXTURES / "growing-activations" / "trace.parquet"
LIMIT = 65504.0
FIGURES = "return document.getElementById('figures').innerText"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which activations grow until one overflows."""
    return page_of(tmp_path_factory.mktemp("pages"), GROWING)


@pytest.fixture(scope="session")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with recorded values, gaps and a skipped step."""
    directory = tmp_path_factory.mktemp("pages")
    return page_of(directory, write_values(directory / "run"))


def figure_of(module: str, context: str, batch: int) -> float:
    """The largest finite magnitude that the trace holds."""
    frames = open_trace(GROWING).rank(0).frames(batch=batch)
    (entry,) = [
        one for frame in frames if frame.module_name == module for one in frame.entries if one.context == context
    ]
    assert entry.finite_abs_max is not None
    return entry.finite_abs_max


def cell(browser: Browser, module: str, batch: int) -> tuple[float, float]:
    """Where on the screen the middle of a cell is."""
    found: tuple[float, float] = browser.run(
        """
        const y = overflow.state.rows.findIndex((row) => row.name === arguments[0]);
        const heat = document.getElementById('heat');
        heat.scrollIntoView({block: 'center'});
        const box = heat.getBoundingClientRect();
        const x = (arguments[1] + 0.5 - overflow.state.from) / (overflow.state.to - overflow.state.from);
        return [box.x + x * box.width, box.y + 18 * y + 9];
        """,
        module,
        batch,
    )
    return found


def mouse(browser: Browser, kind: str, place: tuple[float, float], **more: Any) -> None:
    browser.send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **more)


def press(browser: Browser, key: str, *, text: str | None = None) -> None:
    """Press a key as a keyboard does."""
    codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
    more = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
    sent = {"Enter": "\r"}.get(key, text)
    browser.send("Input.dispatchKeyEvent", type="keyDown", key=key, **more, **({"text": sent} if sent else {}))
    browser.send("Input.dispatchKeyEvent", type="keyUp", key=key, **more)


def view(browser: Browser) -> list[float]:
    found: list[float] = browser.run("return [overflow.state.from, overflow.state.to]")
    return found


def rows(browser: Browser) -> list[str]:
    found: list[str] = browser.run("return overflow.state.rows.map((row) => row.name)")
    return found


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_opens_without_a_complaint_or_a_request_and_fits(
    browser: Browser, growing: Path, width: int, *, dark: bool
) -> None:
    browser.open(growing, width=width, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == [growing.resolve().as_uri()]
    beyond = "const { scrollWidth, clientWidth } = document.documentElement; return scrollWidth - clientWidth"
    assert browser.run(beyond) == 0


def test_without_scripts_the_verdict_and_the_report_are_there(browser: Browser, growing: Path) -> None:
    finding = find_first_nonfinite(open_trace(GROWING))
    assert finding is not None
    # WHEN the browser runs no scripts
    browser.open(growing, scripts=False)
    root = browser.send("DOM.getDocument", depth=-1)["root"]["nodeId"]

    def html(selector: str) -> str:
        node = browser.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        return str(browser.send("DOM.getOuterHTML", nodeId=node)["outerHTML"])

    # THEN the report is there to the letter, links and mark aside
    assert "inf/nan in output of 2 (Block), batch 20" in html("h1")
    assert "Cause: overflow (possible)" in html("#verdict")
    assert render_report(finding.window, 20) in re.sub(r"<[^>]+>", "", html("#frames pre"))
    assert "<mark>3.59e+01      inf output</mark>" in html("#frames pre")


@pytest.mark.parametrize(("module", "context", "batch"), [("2.down", "output", 19), ("0.up", "input[0]", 0)])
def test_the_map_and_the_curves_have_the_figures_of_the_trace(
    browser: Browser, growing: Path, module: str, context: str, batch: int
) -> None:
    figure = figure_of(module, context, batch)
    browser.open(growing)
    # WHEN the mouse points at a cell
    mouse(browser, "mouseMoved", cell(browser, module, batch))
    shown = browser.run(FIGURES)
    # THEN its figures are the trace's
    assert f"{module}, batch {batch}\n" in shown
    assert f"headroom {math.log2(LIMIT / figure):.2f} bits" in shown
    assert f"largest finite {figure:.2e}, {figure / LIMIT:.1%} of float16's limit" in shown
    # AND so are those of the curve
    place = cell(browser, module, batch)
    mouse(browser, "mousePressed", place, button="left", clickCount=1)
    mouse(browser, "mouseReleased", place, button="left", clickCount=1)
    assert browser.wait("return document.getElementById('curves-title').textContent") == f"Curves of {module}"
    points = browser.run(
        "const { x, y, label, batch } = overflow.views.curves.sources.points.data;"
        "return Array.from(label, (one, at) => [one, batch[at], x[at], y[at]])"
    )
    (point,) = [one for one in points if one[0].startswith(f"{context} (") and one[1] == str(batch)]
    assert point[2] == batch + 0.5
    assert point[3] == pytest.approx(figure, rel=1e-4)


def test_an_inf_is_hatched_and_named(browser: Browser, growing: Path) -> None:
    browser.open(growing)
    marks = browser.run("const { x, y, text } = overflow.views.heat.sources.marks.data; return [x, y, text]")
    hatches = browser.run("return overflow.views.heat.sources.nonfinite.data.hatch")
    # THEN the module that overflowed and the root around it are marked in the last batch
    at = rows(browser).index("2")
    assert marks == [[20.5, 20.5], [0.5, at + 0.5], ["∞", "∞"]]
    assert hatches == ["/", "/"]
    browser.run("overflow.showCell(arguments[0], 20.5)", at)
    assert "no headroom: it has inf\n2 inf\noutput of 2 (output, float16)" in browser.run(FIGURES)


def test_folding_keeps_the_worst_in_sight(browser: Browser, growing: Path) -> None:
    browser.open(growing)
    assert rows(browser) == [
        "",
        "0",
        "0.up",
        "0.act",
        "0.down",
        "1",
        "1.up",
        "1.act",
        "1.down",
        "2",
        "2.up",
        "2.act",
        "2.down",
    ]
    # WHEN all is folded
    browser.run("document.getElementById('fold').click()")
    # THEN a block shows the least headroom of what is in it
    assert rows(browser) == ["", "0", "1", "2"]
    browser.run("overflow.showCell(3, 19.5)")
    frames = open_trace(GROWING).rank(0).frames(batch=19)
    inside = (entry for frame in frames if frame.module_name.split(".")[0] == "2" for entry in frame.entries)
    largest = max(entry.finite_abs_max or 0.0 for entry in inside)
    assert f"headroom {math.log2(LIMIT / largest):.2f} bits" in browser.run(FIGURES)
    # WHEN one is unfolded by the keyboard
    browser.run("document.querySelector('[data-node=\"1\"]').focus()")
    press(browser, "Enter")
    browser.wait("return overflow.state.rows.length === 7")
    assert rows(browser) == ["", "0", "1", "1.up", "1.act", "1.down", "2"]
    # THEN it keeps the focus and says what it is
    assert browser.run("return document.activeElement.getAttribute('aria-label')") == "fold 1"


def test_zooming_with_the_mouse_the_keyboard_and_buttons(browser: Browser, growing: Path) -> None:
    browser.open(growing)
    assert view(browser) == [0, 21]
    # WHEN the mouse drags from batch 5 to batch 9
    start, stop = cell(browser, "1", 5), cell(browser, "1", 9)
    mouse(browser, "mouseMoved", start)
    mouse(browser, "mousePressed", start, button="left", clickCount=1)
    for share in (0.25, 0.5, 0.75, 1.0):
        between = start[0] + share * (stop[0] - start[0]), start[1]
        mouse(browser, "mouseMoved", between, button="left", buttons=1)
    mouse(browser, "mouseReleased", stop, button="left", clickCount=1)
    browser.wait("return overflow.state.to < 21")
    # THEN all pictures show these batches
    assert view(browser) == pytest.approx([5.5, 9.5], abs=0.1)
    ranges = browser.run("return ['heat', 'curves', 'values'].map((one) => overflow.views[one].plot.x_range.start)")
    assert ranges == pytest.approx([5.5] * 3, abs=0.1)
    # AND keys and buttons go in and out
    browser.run("document.getElementById('all').click()")
    assert view(browser) == [0, 21]
    browser.run("document.getElementById('heat-frame').focus()")
    for key in ("ArrowDown", "ArrowLeft", "+"):
        press(browser, key, text=key if key == "+" else None)
    assert view(browser)[1] - view(browser)[0] == pytest.approx(10.5)
    press(browser, "0", text="0")
    assert view(browser) == [0, 21]
    browser.run("document.getElementById('zoom-in').click(); document.getElementById('later').click()")
    assert view(browser) == [10.5, 21]


def test_arrows_move_from_cell_to_cell_and_enter_leads_to_the_curves(browser: Browser, growing: Path) -> None:
    browser.open(growing)
    browser.run("document.getElementById('heat-frame').focus()")
    read = []
    for key in ("ArrowDown", "ArrowLeft", "ArrowDown", "ArrowUp", "ArrowRight"):
        press(browser, key)
        read.append(browser.run(FIGURES).splitlines()[0])
    assert read == ["(root), batch 20", "(root), batch 19", "0, batch 19", "(root), batch 19", "(root), batch 20"]
    press(browser, "Enter")
    assert browser.run("return document.getElementById('curves-title').textContent") == "Curves of the root module"


def test_the_keyboard_reaches_every_control(browser: Browser, growing: Path) -> None:
    browser.open(growing)
    reached = set()
    for _ in range(120):
        press(browser, "Tab")
        reached.add(
            browser.run(
                "const one = document.activeElement; return one.id || one.dataset.node || one.className || one.type"
            )
        )
    controls = {"metric", "role", "fold", "unfold", "earlier", "zoom-in", "zoom-out", "later", "all", "heat-frame"}
    assert controls | {"0", "1", "2", "name", "checkbox", "panel"} <= reached


def test_names_in_the_report_lead_to_their_curves(browser: Browser, growing: Path) -> None:
    browser.open(growing)
    browser.run("[...document.querySelectorAll('#frames a')].find((one) => one.textContent === '1.act ReLU').click()")
    browser.wait("return document.getElementById('curves-title').textContent === 'Curves of 1.act'")
    # AND an address does so from outside
    number = browser.run("return overflow.runs[0].modules.indexOf('0.down')")
    browser.open(growing, at=f"#m{number}")
    assert browser.run("return document.getElementById('curves-title').textContent") == "Curves of 0.down"


def test_growth_is_the_change_from_batch_to_batch(browser: Browser, growing: Path) -> None:
    grown = math.log2(figure_of("2.down", "output", 5) / figure_of("2.down", "output", 4))
    browser.open(growing)
    browser.run("const one = document.getElementById('metric'); one.value = 'growth'; one.onchange()")
    browser.run("overflow.showCell(overflow.state.rows.findIndex((row) => row.name === '2.down'), 5.5)")
    assert f"growth +{grown:.3f} bits a batch" in browser.run(FIGURES)


def test_limits_and_the_fit_of_top_are_drawn(browser: Browser, growing: Path) -> None:
    browser.open(growing)
    assert LIMIT in [pytest.approx(y) for y in browser.run("return overflow.views.curves.sources.limits.data.y")]
    # THEN the fit rises as top says, for module 2 over 21 batches 0.697 bits each, and goes on beyond them
    xs, ys = browser.run("const { x, y } = overflow.views.curves.sources.fit.data; return [x, y]")
    assert xs == pytest.approx([0.5, 20.5 + 0.15 * 21])
    assert math.log2(ys[1] / ys[0]) / (xs[1] - xs[0]) == pytest.approx(0.697, abs=0.001)
    assert "+0.697 bits a batch over batches 0 to 20; at this rate the limit is 7.40 batches away" in browser.run(
        "return document.getElementById('curves-note').textContent"
    )
    assert view(browser) == [0, 21]


def test_zeros_and_roles_are_chosen(browser: Browser, tmp_path: Path) -> None:
    # GIVEN full statistics: a quarter of an input is 0, half of a gradient
    given = tensor("input", "input[0]", zero_count=1, subnormal_count=0)
    gradient = tensor("grad_output", "grad_output[0]", zero_count=2, subnormal_count=0)
    browser.open(page_of(tmp_path, write_trace(tmp_path / "run", [frame(0, 0, "lin", given, gradient)])))
    # WHEN zeros are shown of the forward, and of the gradient
    shown = []
    for role in ("", "grad_output"):
        browser.run(
            "for (const [id, value] of [['metric', 'zero'], ['role', arguments[0]]]) {"
            "  document.getElementById(id).value = value; document.getElementById(id).onchange();"
            "} overflow.showCell(0, 0.5)",
            role,
        )
        shown.append(browser.run(FIGURES))
    assert "25.0% are 0\ninput[0] of lin (input, float16)" in shown[0]
    assert "50.0% are 0\ngrad_output[0] of lin (grad_output, float16)" in shown[1]
    assert browser.complaints() == []


def test_values_steps_and_gaps_are_below_the_curves(browser: Browser, values: Path) -> None:
    browser.open(values)
    lines = browser.run("return overflow.views.values.sources.lines.data.label")
    assert lines == ["loss", "scaler loss_scale"]
    losses = browser.run("return Array.from(overflow.views.values.sources.lines.data.ys[0])")
    assert losses == pytest.approx([2.0 / (1 + at) for at in range(15)], rel=1e-4)
    # THEN each batch but the first has a step before it, and the sixth none: its step was skipped
    steps = browser.run("return overflow.views.values.sources.steps.data.x")
    assert steps == [at + 0.5 for at in range(1, 15) if at != 6]
    # AND the float32 loss does not stretch the scale of the float16 weight, which has 16 bits left at first
    assert browser.run("return overflow.views.heat.plot.renderers[0].glyph.color_mapper.high") == 16
    # AND between batches 9 and 20 is a gap
    assert browser.run("return overflow.views.curves.sources.gaps.data.x") == [10]
    assert "loss; scaler loss_scale; " in browser.run("return document.getElementById('values-note').textContent")


def luminance(colour: str) -> float:
    """As WCAG has it."""
    parts = [int(one) / 255 for one in re.findall(r"\d+", colour)[:3]]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


TEXTS = """
const found = [];
for (const one of document.querySelectorAll('body *')) {
  const own = [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!own || !one.getClientRects().length || ['SCRIPT', 'OPTION'].includes(one.tagName)) continue;
  const papers = [];
  for (let at = one; at; at = at.parentElement) papers.push(getComputedStyle(at).backgroundColor);
  const paper = papers.find((colour) => colour !== 'rgba(0, 0, 0, 0)');
  found.push([`${one.tagName}.${one.className}`, getComputedStyle(one).color, paper]);
}
return found
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast(browser: Browser, growing: Path, *, dark: bool) -> None:
    browser.open(growing, dark=dark)
    texts = browser.run(TEXTS)
    assert len(texts) > 60
    for name, ink, paper in texts:
        light, dim = sorted([luminance(ink), luminance(paper)], reverse=True)
        assert (light + 0.05) / (dim + 0.05) >= 4.5, (name, ink, paper)


def test_dark_and_light_follow_the_system_while_the_page_is_open(browser: Browser, growing: Path) -> None:
    browser.open(growing, dark=True)
    ink = "return overflow.views.heat.plot.below[0].major_label_text_color"
    dark = browser.run(ink), browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.wait(f"{ink} !== '{dark[0]}'")
    light = browser.run(ink), browser.run("return getComputedStyle(document.documentElement).backgroundColor")
    assert dark == ("#e6edf3", "rgb(15, 19, 24)")
    assert light == ("#1b1f24", "rgb(255, 255, 255)")


def test_it_prints(browser: Browser, growing: Path) -> None:
    browser.open(growing, dark=True)
    printed = base64.b64decode(browser.send("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 2
    assert browser.complaints() == []


def test_hostile_names_are_names(browser: Browser, tmp_path: Path) -> None:
    # GIVEN names that would act on a page, as modules, classes, contexts and dtypes
    page = page_of(tmp_path, write_hostile_names(tmp_path / "run"))
    browser.open(page)
    # WHEN each module's row, cell and curves are looked at
    shown = browser.run(
        """
        document.getElementById('unfold').click();
        const seen = [];
        overflow.state.rows.forEach((row, at) => {
          overflow.showCell(at, 0.5);
          [...document.querySelectorAll('#rows .name')][at].click();
          seen.push(document.getElementById('figures').innerText, document.getElementById('choice').innerText);
        });
        return seen.join('\\n');
        """
    )
    # THEN nothing of them has acted, and they show as what they are
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('img, svg, #injected, iframe').length") == 0
    for name in HOSTILE_NAMES:
        escaped = re.sub("[\x1b\x00\u202e\u2028]", lambda one: one[0].encode("unicode_escape").decode(), name)
        assert f"{escaped} (output, float16)" in shown
    first = HOSTILE_NAMES[0]
    report = browser.run("return document.querySelector('#frames pre').textContent")
    assert f"                  {first} {first}\n" in report


def test_pointing_at_a_curve_shows_its_figures_and_a_hostile_name_as_text(browser: Browser, tmp_path: Path) -> None:
    # GIVEN a context that is markup, with the figure 8 in the one batch there is
    name = "<img src=x><b id=injected>bold</b>"
    output = tensor("output", name, finite_abs_max=8.0)
    browser.open(page_of(tmp_path, write_trace(tmp_path / "run", [frame(0, 0, "lin", output)])))
    # WHEN the mouse points at it: from left to right, as the picture has it, past its axis of 64 pixels
    place = browser.run(
        "const holder = document.getElementById('curves'); holder.scrollIntoView({block: 'center'});"
        "const { x, y, width } = holder.getBoundingClientRect();"
        "const { start, end } = overflow.views.curves.plot.y_range;"
        "return [x + 64 + (width - 64) / 2, y + 300 * Math.log2(end / 8) / Math.log2(end / start)]"
    )
    for aside in (30, 0):
        mouse(browser, "mouseMoved", (place[0] + aside, place[1]))
    walk = """
    const inside = (one) => [one, ...(one.shadowRoot ? all(one.shadowRoot) : [])];
    const all = (node) => [...node.querySelectorAll('*')].flatMap(inside);
    const texts = all(document).map((one) => one.shadowRoot?.textContent || '');
    """
    shown = browser.wait(f"{walk} return texts.find((text) => text.includes('8.00e+00'))")
    # THEN its figure is there, and the name is text
    assert name in shown
    markup = f"{walk} return all(document).filter((one) => one.tagName === 'IMG' || one.id === 'injected').length"
    assert browser.run(markup) == 0


def test_hostile_names_are_names_in_a_comparison(browser: Browser, tmp_path: Path) -> None:
    one, other = write_hostile_names(tmp_path / "a"), write_hostile_names(tmp_path / "b", 8.0)
    browser.open(page_of(tmp_path, one, other))
    browser.run("[...document.querySelectorAll('#rows .name')].forEach((name) => name.click())")
    assert browser.complaints() == []
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('img, svg, #injected, iframe').length") == 0


def test_512_ranks_have_a_strip_each(browser: Browser, tmp_path: Path) -> None:
    page = page_of(tmp_path, write_many_ranks(tmp_path / "run", 512, missing=100))
    browser.open(page)
    # THEN the page says who was first and who is missing
    text = browser.run("return document.getElementById('rank').innerText")
    assert "rank 7 was first: batch 2" in text
    assert "1 rank of 512 left nothing readable: rank 100" in text
    assert "then in batch 3: ranks 0, 1, 2, 3, 4, 5, 6, 8, 9" in text
    # AND the strip of rank 7 alone is hatched from batch 2 on, those of the others from batch 3
    fields = browser.run(
        "const { left, top, bottom } = overflow.views.ranks.sources.nonfinite.data;"
        "return Array.from(left, (one, at) => [one, top[at], bottom[at]])"
    )
    assert fields == [[3, 0, 7], [2, 7, 8], [3, 8, 511]]
    assert browser.run("const { x, y } = overflow.views.ranks.sources.firsts.data; return [x, y]") == [[2.5], [7.5]]
    # AND pointing at it gives its figures
    place = browser.run(
        "const one = document.getElementById('ranks'); one.scrollIntoView({block: 'start'});"
        "const box = one.getBoundingClientRect(); return [box.right - 40, box.y + 200.5]"
    )
    mouse(browser, "mouseMoved", tuple(place))
    assert "rank 201, batch 3: least headroom" in browser.wait(
        "const text = document.getElementById('rank-figures').textContent; return text.startsWith('rank') && text"
    )
    assert browser.complaints() == []
