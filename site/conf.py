"""How Sphinx makes pages of what tools/book.py has laid out in .site/source."""

project = "Agent RL in notebooks"
author = copyright = "the agentrl authors"

extensions = ["myst_nb", "sphinx.ext.autodoc"]
nb_execution_mode = "off"  # the stored outputs are the book's
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_static"]
source_suffix = {".rst": "restructuredtext", ".ipynb": "myst-nb", ".md": "myst-nb"}

# Docstrings are plain text; `as_rst` of tools/book.py escapes what Sphinx would take for markup.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "sphinx_book_theme"
html_title = "Agent RL in notebooks"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = True
html_show_sphinx = False
templates_path = []
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": True,
    "use_fullscreen_button": False,
    "collapse_navbar": True,
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
    "pygments_light_style": "tango",
}
html_context = {"default_mode": "light"}  # figures and token views are drawn for a light page

# MathJax and its fonts lie in _static: formulas need no network.
mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {"options": {"enableMenu": False}}


def setup(app):
    from tools.book import as_rst, link_code, source_line

    def docstring(app, what, name, obj, options, lines):
        lines[:] = [*as_rst(lines, name), *source_line(what, name)]

    def body(app, pagename, templatename, context, doctree):
        if pagename.startswith("notebooks/"):
            context["body"] = link_code(pagename.removeprefix("notebooks/"), context["body"])

    app.connect("autodoc-process-docstring", docstring)
    app.connect("html-page-context", body)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
