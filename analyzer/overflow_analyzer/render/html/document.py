"""A page in one file: its template, its styles, its scripts and its data, under a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.errors import MissingExtraError
from overflow_analyzer.render.html.pictures import MISSING, library
from overflow_analyzer.text.strict_json import to_json_line

if TYPE_CHECKING:
    from collections.abc import Mapping


_HERE: Final = Path(__file__).parent


def render_document(template: str, data: Mapping[str, Any], **parts: Any) -> str:
    """Return a page.

    The policy names the two scripts by their hashes and the styles by a nonce, which is the hash of the data: what the
    data hold cannot name it. No address is allowed but that of images within the page, which Bokeh's cursors are.

    Args:
        template: Its file beside this one.
        data: What the page's script reads, as ``to_plain`` takes it.
        **parts: What the template shows; text is escaped there.

    Raises:
        MissingExtraError: Jinja2 or Bokeh is not installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingExtraError(MISSING) from None
    script, style = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    drawing = library().read_text(encoding="utf-8")
    text = to_json_line(data)
    nonce = _hash(text)
    scripts = " ".join(f"'sha256-{_hash(one)}'" for one in (script, drawing))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, loader=FileSystemLoader(_HERE), trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(
        policy=f"default-src 'none'; script-src {scripts}; style-src 'nonce-{nonce}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        nonce=nonce,
        # These four are ours, or JSON in which no character can end the element.
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
        library=Markup(drawing),  # noqa: S704
        data=Markup(text),  # noqa: S704
        **parts,
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
