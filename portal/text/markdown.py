"""What people write in Markdown, as HTML: without HTML of their own, images, and links to anything but pages and mail. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from django.utils.safestring import SafeString

# Imported where it is used: each start of any program of the portal would take 50 ms more.
if TYPE_CHECKING:
    from markdown_it import MarkdownIt

# The page has the first and the second level.
_DEEPER = 2


@cache
def _parser() -> MarkdownIt:
    """Its links have passed its own check: no javascript:, vbscript:, file: or data:."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


def html_of(text: str) -> SafeString:
    if not text:
        return SafeString("")
    parser = _parser()
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + _DEEPER)}"
    return SafeString(parser.renderer.render(tokens, parser.options, {}))
