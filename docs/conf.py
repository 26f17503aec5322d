"""Sphinx configuration: `make site` builds the pages, tutorials and docstrings into a site."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "amaranth-vta"
release = metadata.version("amaranth-vta")
copyright = "the amaranth-vta maintainers"

extensions = [
    "myst_nb",  # pages in Markdown, tutorials as notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # sections such as Parameters and Ports in docstrings
    "timing_diagrams",  # extensions/: waveforms from the Timing blocks of docstrings
]
exclude_patterns = ["drawing", "extensions", "figures/README.md"]
# Tests run the tutorials and hold their outputs; the site shows these.
nb_execution_mode = "off"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "amaranth-vta"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signatures have types; docstrings explain the parameters
autodoc_class_signature = "separated"
napoleon_google_docstring = False
napoleon_custom_sections = [("Ports", "params_style")]
python_use_unqualified_type_names = True


def setup(app: object) -> None:
    app.connect("source-read", stay_on_the_site)  # type: ignore[attr-defined]


def stay_on_the_site(app: object, page: str, source: list[str]) -> None:
    """Link to the pages of the site where the repository links to files, and theme the figures."""
    up = "../" * page.count("/")
    text = source[0].replace(f"({up}../examples/digits/README.md", f"({up}digits.md")
    text = text.replace(f"({up}../bitstreams/", f"(path:{up}../bitstreams/")  # offered as a file
    source[0] = PICTURE.sub(themed, text)


PICTURE = re.compile(
    r'<picture><source [^>]*srcset="(?P<dark>[^"]+)">'
    r'<img src="(?P<light>[^"]+)" alt="(?P<alt>[^"]*)"></picture>'
)


def themed(match: re.Match[str]) -> str:
    """Include both variants of a figure; the theme shows the matching one, also after a switch."""
    figure = Path(__file__).parent / match["light"]
    wide = " wide" if int(re.findall(r' width="(\d+)"', figure.read_text())[0]) > 600 else ""
    images = "".join(
        f"```{{image}} {match[theme]}\n:class: only-{theme}{wide}\n:alt: {match['alt']}\n```\n\n"
        for theme in ("light", "dark")
    )
    return f"````{{container}} figure-box\n{images}````"
