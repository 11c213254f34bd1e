"""The site: built from the repository alone, without a warning or a broken link, and as a reader meets it."""

import functools
import http.server
import json
import re
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock
from playwright.sync_api import expect

import agentrl
from agentrl.symptoms import SYMPTOMS
from tests.browser import LIMIT, PATIENCE, chromium, needs_browser
from tools import book
from tools.figures import made
from tools.notebooks import ROOT, find_notebooks, read_source, section, title
from tools.symptoms import section_links

pytestmark = pytest.mark.timeout(LIMIT)
browser = pytest.mark.browser
GLOSSARY = (ROOT / "site" / "glossary.md").read_text(encoding="utf-8")
LINKS = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


@pytest.fixture(scope="session")
def site(tmp_path_factory, worker_id):
    """The folder of the built pages; built once, also where several workers share the tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "site"
    with FileLock(f"{folder}.lock", timeout=800):
        if not (folder / "done").exists():
            command = [sys.executable, "-m", "tools.book", "--out", str(folder)]
            build = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
            assert build.returncode == 0, build.stdout + build.stderr
            assert "WARNING" not in build.stdout + build.stderr
            (folder / "done").touch()
    return folder / "html"


# What is on the pages


class Page(HTMLParser):
    """What a page names (ids), links to (href) and loads (src, style sheets)."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[key] for key in ("id", "name") if attrs.get(key)}
        if "href" in attrs:
            (self.links if tag == "a" else self.loads).append(attrs["href"] or "")
        self.loads += [attrs[key] for key in ("src", "srcset", "poster") if attrs.get(key)]


def read_pages(folder):
    """{file: Page} of all pages; what the theme keeps in _static are templates."""
    found = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.relative_to(folder).parts]
    return {path: Page(path.read_text(encoding="utf-8")) for path in found}


def broken_links(pages):
    """`page: link` for each link or source that leads nowhere, and each that is loaded from elsewhere."""
    found = []
    for path, page in pages.items():
        for link in {*page.links, *page.loads}:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") or parts.netloc:
                found += [f"{path}: loads {link}"] * (link in page.loads)
            elif not parts.scheme:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                anchor = unquote(parts.fragment)
                if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                    found.append(f"{path}: {link}")
    return found


@pytest.fixture(scope="session")
def pages(site):
    return read_pages(site)


def test_no_link_is_broken_and_nothing_is_loaded_from_elsewhere(pages):
    assert len(pages) > len(find_notebooks())
    assert broken_links(pages) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here"></a><a href="b.html#there"></a><a href="b.html#gone"></a>'
        '<a href="c.html"></a><img src="d.png"><script src="https://example.org/x.js"></script>'
        '<a href="https://example.org"></a></p>'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    found = [line.split(": ", 1)[1] for line in broken_links(read_pages(tmp_path))]
    assert sorted(found) == ["b.html#gone", "c.html", "d.png", "loads https://example.org/x.js"]


def test_every_section_has_its_page_and_its_notebook_to_take_away(site):
    for path in find_notebooks():
        text = (site / "notebooks" / f"{section(path)}.html").read_text(encoding="utf-8")
        assert re.search(r"<h1>", text) and title(read_source(path)).split()[0] in text
        assert (site / "_sources" / "notebooks" / f"{section(path)}.ipynb").is_file()


def test_the_start_page_holds_orders_symptoms_and_chapters(site, pages):
    text = (site / "index.html").read_text(encoding="utf-8")
    start = pages[site / "index.html"]
    assert {"you-are-new-to-reinforcement-learning", "you-know-ppo", "you-have-a-sick-run"} <= start.ids
    links = section_links()
    for row in SYMPTOMS:
        assert row["symptom"] in text
        notebook = links[row["section"]].split("(")[1].rstrip(")")
        assert notebook.replace(".ipynb", ".html") in start.links
    assert {f"chapters/{folder}.html" for folder in book.chapters()} <= set(start.links)


def test_every_public_name_is_documented_and_leads_to_its_cell(site, pages):
    by_page = defaultdict(set)
    for path, page in pages.items():
        by_page[path.parent.name] |= page.ids
    assert {name.split(".")[-1] for name in book.homes()} >= set(agentrl.__all__)
    for name, (_, module, cell) in book.homes().items():
        if not name.split(".")[-1].startswith("_"):
            page = pages[site / "api" / f"{module}.html"]
            assert name in page.ids
            assert any(link.endswith(f"#{book.label(module, cell)}".replace("_", "-")) for link in page.links), name


def test_code_links_to_the_package(site, pages):
    links = pages[site / "notebooks" / "00_start_here" / "00_1_tour.html"].links
    assert "../../api/training.html#agentrl.training.train_rl" in links


def test_every_figure_and_table_is_listed_with_its_files_and_its_cell(site, pages):
    page = pages[site / "figures.html"]
    files = {Path(link).name for link in page.links}
    for name, path in made().items():
        assert Path(name).name in files, name
        if path.suffix == ".svg":
            assert f"_images/{Path(name).name}" in page.loads
        anchor = f"made-{path.stem}".replace("_", "-").lower()
        assert any(link.endswith(f"#{anchor}") for link in page.links), name


# The glossary


def test_the_glossary_links_sections_by_their_numbers():
    numbers = {link.split("](")[1].rstrip(")"): number for number, link in section_links().items()}
    entries = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", GLOSSARY, re.MULTILINE)
    terms = [term for term, _ in entries]
    assert len(terms) >= 50 and terms == sorted(set(terms), key=str.lower)
    for term, text in entries:
        links = LINKS.findall(text)
        assert links and text.split(" ([")[0].endswith("."), term
        for number, link in links:
            assert numbers.get(link.removeprefix("../")) == number, (term, number, link)


def test_the_reading_orders_link_sections_by_their_numbers():
    text = (ROOT / "site" / "reading_orders.md").read_text(encoding="utf-8")
    numbers = {number: link.split("](")[1].rstrip(")") for number, link in section_links().items()}
    links = [(number, link) for number, link in LINKS.findall(text) if link.endswith(".ipynb")]
    assert len(links) > 30
    assert [pair for pair in links if numbers[pair[0]] != pair[1].removeprefix("../")] == []


def test_every_term_is_a_term_of_the_site(site, pages):
    terms = re.findall(r"^- \*\*(.+?)\*\*:", GLOSSARY, re.MULTILINE)
    ids = pages[site / "glossary.html"].ids
    assert sum(name.startswith("term-") for name in ids) == len(terms)


# How outputs and docstrings are turned into pages


@pytest.mark.parametrize(
    "data",
    [
        {"text/plain": "interactive(children=(FloatSlider(value=0.4), Output()))"},
        {"text/plain": "VBox(children=(Play(value=0),))"},
        {"text/plain": "Player()", "application/vnd.jupyter.widget-view+json": {"model_id": "x"}},
    ],
)
def test_a_widget_without_a_state_becomes_a_sentence(data):
    output = {"output_type": "display_data", "data": dict(data)}
    book.make_static(output)
    assert "make lab" in output["data"]["text/html"]
    assert "application/vnd.jupyter.widget-view+json" not in output["data"]


def test_what_a_widget_stored_beside_itself_stays():
    data = {"text/html": "<b>4</b>", "text/plain": "x", "application/vnd.jupyter.widget-view+json": {}}
    book.make_static(output := {"output_type": "display_data", "data": data})
    assert output["data"] == {"text/html": "<b>4</b>", "text/plain": "x"}
    book.make_static(plain := {"output_type": "stream", "name": "stdout", "text": "a"})
    assert plain == {"output_type": "stream", "name": "stdout", "text": "a"}


def test_docstrings_are_shown_as_they_are():
    assert book.as_rst(["Mean of |x| for *args, `keep` and n_."]) == [
        "Mean of \\|x\\| for \\*args, ``keep`` and n\\_.",
        "",
    ]
    assert book.as_rst(["a: one", "    more", "", "End."]) == ["| a: one", "|     more", "", "End.", ""]
    assert book.as_rst(["Config(a: int = 1)"], "agentrl.training.Config") == []


# In a browser


@contextmanager
def served(folder):
    """The folder behind a server on a free port of this machine; gives its address."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def tabs():
    """A browser in which every test opens a page of its own."""
    with chromium() as context:
        yield context


@pytest.fixture
def page(tabs):
    page = tabs.new_page()
    yield page
    page.close()


@pytest.fixture
def reader(site, page):
    """A page of a browser, the site's address, and a list of what must stay empty: see `complaints`."""
    complaints = []
    with served(site) as url:
        page.on("request", lambda request: complaints.append(request.url) if not is_here(request.url, url) else None)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "response", lambda reply: complaints.append(f"{reply.status} {reply.url}") if reply.status >= 400 else None
        )
        yield page, url
    assert complaints == []


def is_here(request, url):
    return request.startswith((url, "data:", "blob:"))


@browser
@needs_browser
def test_search_finds_a_term_and_leads_to_it(reader):
    page, url = reader
    page.goto(f"{url}search.html?q=zombie")
    results = page.locator("#search-results li a")
    expect(results.filter(has_text="A retry makes a zombie").first).to_be_visible(timeout=PATIENCE * 1000)
    results.filter(has_text="A retry makes a zombie").first.click()
    expect(page.locator("article h1")).to_contain_text("A retry makes a zombie")


@browser
@needs_browser
def test_the_search_button_opens_a_field_that_searches(reader):
    page, url = reader
    page.goto(url)
    page.locator(".search-button__button:visible, .search-button-field:visible").first.click()
    page.keyboard.type("whitening")
    page.keyboard.press("Enter")
    expect(page.locator("#search-results li a").first).to_be_visible(timeout=PATIENCE * 1000)


@browser
@needs_browser
def test_formulas_figures_token_views_and_static_views_are_shown(reader):
    page, url = reader
    page.goto(f"{url}notebooks/02_fundamentals/02_2_repair_mdp.html")
    formula = page.locator("mjx-container[display=true]").first
    expect(formula).to_be_visible(timeout=PATIENCE * 1000)
    assert formula.bounding_box()["width"] > 50
    assert page.locator(".MathJax_Error, mjx-merror").count() == 0
    assert "$$" not in page.locator("article").inner_text()
    picture = page.locator(".cell_output img").first
    picture.scroll_into_view_if_needed()
    assert picture.evaluate("img => img.decode().then(() => img.naturalWidth)") > 0
    expect(page.locator(".static-view")).to_be_visible()
    assert page.locator("script[type*='widget']").count() == 0
    assert "interactive(children" not in page.locator("article").inner_text()

    page.goto(f"{url}notebooks/00_start_here/00_1_tour.html")
    tokens = page.locator(".cell_output [title*='trained on']")
    assert tokens.count() > 20
    colours = tokens.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) >= 3


@browser
@needs_browser
def test_a_symptom_leads_to_its_section(reader):
    page, url = reader
    page.goto(url)
    row = page.locator("table tr", has_text="KL explodes after a long calm")
    row.get_by_role("link", name="14.6").click()
    expect(page.locator("article h1")).to_contain_text("14.6")


@browser
@needs_browser
@pytest.mark.slow
def test_no_formula_fails_and_no_page_is_wider_than_a_phone(reader, pages, site):
    page, url = reader
    page.set_viewport_size({"width": 390, "height": 844})
    wrong = {}
    for path in (path for path in pages if path.parent.parent.name == "notebooks" or path.parent == site):
        page.goto(f"{url}{path.relative_to(site).as_posix()}")
        page.evaluate("() => window.MathJax?.startup?.promise")
        found = page.evaluate(
            "() => [document.querySelectorAll('mjx-merror').length,"
            " Math.max(0, document.documentElement.scrollWidth - window.innerWidth)]"
        )
        if any(found):
            wrong[path.name] = found
    assert wrong == {}


@browser
@needs_browser
def test_the_pages_work_from_the_disk(site, page):
    page.goto((site / "search.html").as_uri() + "?q=staleness")
    expect(page.locator("#search-results li a").first).to_be_visible(timeout=PATIENCE * 1000)
    page.goto((site / "notebooks" / "06_policy_gradient" / "06_1_gradient_and_mask.html").as_uri())
    expect(page.locator("mjx-container").first).to_be_visible(timeout=PATIENCE * 1000)


def test_the_second_build_writes_no_page_again(site):
    """What has not changed is left alone: the layout is the same to the byte and keeps its times."""
    source = site.parent / "source"
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*") if path.is_file()}
    book.lay_out(source)
    assert {path: path.stat().st_mtime_ns for path in source.rglob("*") if path.is_file()} == before
    assert json.loads((source / "notebooks" / "00_start_here" / "00_1_tour.ipynb").read_text(encoding="utf-8"))["cells"]
