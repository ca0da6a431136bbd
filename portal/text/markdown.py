"""What people write in Markdown, as HTML: without HTML of their own, images, and links to anything but pages and mail. Pure."""

from __future__ import annotations

from django.utils.safestring import SafeString
from markdown_it import MarkdownIt

# Its links have passed markdown-it's own check: no javascript:, vbscript:, file: or data:.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
# The page has the first and the second level.
_DEEPER = 2


def html_of(text: str) -> SafeString:
    tokens = _MARKDOWN.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + _DEEPER)}"
    return SafeString(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))
