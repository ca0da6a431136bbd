"""Form data as a browser would send it: values from the HTML, line ends as browsers send them."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class _Fields(HTMLParser):
    def __init__(self, form: str) -> None:
        super().__init__(convert_charrefs=True)
        self.form, self.inside, self.values = form, False, {}
        self.select: str | None = None
        self.textarea: str | None = None
        self.text = ""

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "form":
            self.inside = found.get("id") == self.form
        if not self.inside or "disabled" in found:
            return
        name = found.get("name")
        if tag == "input" and name and found.get("type") == "checkbox" and "checked" in found:
            self.values.setdefault(name, []).append(found.get("value", "on"))
        elif tag == "input" and name and found.get("type") not in ("submit", "checkbox", "radio", "file"):
            self.values[name] = found.get("value", "")
        elif tag in ("select", "textarea"):
            setattr(self, tag, name)
            self.text = ""
        elif tag == "option" and self.select and ("selected" in found or self.select not in self.values):
            self.values[self.select] = found["value"]

    def handle_endtag(self, tag):
        if tag == "form":
            self.inside = False
        elif tag == "select":
            self.select = None
        elif tag == "textarea" and self.textarea:
            # HTML ignores a newline right after the <textarea> tag.
            self.values[self.textarea] = self.text.removeprefix("\n")
            self.textarea = None

    def handle_data(self, data):
        if self.textarea:
            self.text += data


def sent(html: str, form: str = "cluster-form") -> dict[str, str | list[str]]:
    """The fields of the form with this id as the body of a POST; checkboxes give a list of the ticked values."""
    # Browsers read CR LF and CR in a page as LF, and send every line end as CR LF.
    parser = _Fields(form)
    parser.feed(re.sub(r"\r\n?", "\n", html))
    assert parser.values, "the page has no such form"
    as_sent = {name: value for name, value in parser.values.items() if isinstance(value, list)}
    return as_sent | {name: value.replace("\n", "\r\n") for name, value in parser.values.items() if name not in as_sent}


def wrong_fields(html: str) -> dict[str, str]:
    """Errors of a refused form: field name → sentence."""
    found = {}
    for part in html.split('<div class="field field-wrong')[1:]:
        name = re.search(r' name="([^"]+)"', part)
        sentence = re.search(r'<ul class="errorlist[^>]*>\s*<li>(.*?)</li>', part, re.DOTALL)
        assert name
        assert sentence
        found[name[1]] = sentence[1]
    return found
