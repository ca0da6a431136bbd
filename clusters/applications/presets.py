"""First web programs, as values of the form's fields. Pure.

Each needs no more than its packages: the framework finds its address in the variables that `frameworks/web.py` sets, and the
gateway keeps Host, Origin and WebSockets as they are, so neither a root path nor exceptions from CORS and XSRF are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    title: str
    text: str
    requirements: str
    program: str
    start: str
    env: str

    @property
    def fields(self) -> Mapping[str, str]:
        command = f"cat > app.py <<'END'\n{self.program}END\nexec {self.start}"
        served = "web=8080"
        return {"command": command, "requirements": self.requirements, "endpoints": served, "env": self.env}


# Both frameworks report their use to their makers unless told not to; tasks mostly reach no such address.
PRESETS: Mapping[str, Preset] = {
    "gradio": Preset(
        "Gradio",
        "A function with inputs and outputs, such as a model",
        "gradio>=5",
        """\
import gradio as gr


def greet(name):
    return f"Hello {name}!"


gr.Interface(greet, "text", "text", flagging_mode="never").launch()
""",
        "python app.py",
        "GRADIO_ANALYTICS_ENABLED=False",
    ),
    "streamlit": Preset(
        "Streamlit",
        "A script that becomes a page: texts, tables, charts",
        "streamlit>=1.40",
        """\
import streamlit as st

name = st.text_input("Name", "world")
st.write(f"Hello {name}!")
""",
        "streamlit run app.py",
        "STREAMLIT_SERVER_HEADLESS=true\nSTREAMLIT_BROWSER_GATHER_USAGE_STATS=false",
    ),
}
