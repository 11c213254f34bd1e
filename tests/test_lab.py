"""JupyterLab as a reader meets it: a notebook opens without a question, runs, and is saved as a pair."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect, sync_playwright

from tools.notebooks import ROOT

NOTEBOOK = "notebooks/03_model/03_1_tokenizer"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
SERVER = [
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--port=0",  # any free one
    # should this test die, the server ends by itself
    "--ServerApp.shutdown_no_activity_timeout=300",
    "--MappingKernelManager.cull_idle_timeout=120",
    "--MappingKernelManager.cull_interval=30",
    "--MappingKernelManager.cull_connected=True",
]
# where a reader's own settings, workspaces and kernels would come from
PLACES = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
)
PATIENCE = 240  # seconds; much of it only where the machine is busy
LINE = "# typed in JupyterLab"


def until(found, what):
    """The first true value of `found()`; fails in words after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(0.2)
    return value


@contextmanager
def jupyterlab(root, scratch):
    """JupyterLab on `root`, its settings under `scratch`: gives its address and token; always stopped."""
    token, log = secrets.token_hex(16), scratch / "server.log"
    env = {**os.environ, **{name: str(scratch / name) for name in PLACES}, "JUPYTER_TOKEN": token}
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", *SERVER]
    scratch.mkdir()
    with log.open("w") as file:
        server = subprocess.Popen(command, cwd=root, env=env, stdout=file, stderr=file)

    def address():
        assert server.poll() is None, f"JupyterLab ended:\n{log.read_text()[-2000:]}"
        for card in (scratch / "JUPYTER_RUNTIME_DIR").glob("jpserver-*.json"):
            if text := card.read_text():
                return json.loads(text)["url"]

    try:
        yield until(address, "JupyterLab to start"), token
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def chromium():
    """A page in a headless browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS, timeout=PATIENCE * 1000)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.set_default_timeout(PATIENCE * 1000)
            yield page
        finally:
            browser.close()


@pytest.fixture
def copy(tmp_path):
    """A book of one notebook: its .py an hour older than its .ipynb, and without the last stored output."""
    root = tmp_path / "book"
    (root / NOTEBOOK).parent.mkdir(parents=True)
    for name in ("notebooks/jupytext.toml", f"{NOTEBOOK}.py", f"{NOTEBOOK}.ipynb"):
        shutil.copy(ROOT / name, root / name)
    source, stored = root / f"{NOTEBOOK}.py", root / f"{NOTEBOOK}.ipynb"
    notebook = json.loads(stored.read_text(encoding="utf-8"))
    last = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"][-1]
    expected = "".join(last["outputs"][0]["text"]).strip()
    last["outputs"], last["execution_count"] = [], None
    stored.write_text(json.dumps(notebook), encoding="utf-8")
    hour_ago = time.time() - 3600
    os.utime(source, (hour_ago, hour_ago))
    return root, source, stored, expected


def choose(page, menu, item):
    """Open a menu of the menu bar and click an item."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.locator(".lm-Menu-item").filter(has_text=re.compile(f"^{item}")).click()


def asked(page):
    """The texts of all dialogs; a dialog, unlike a notification, wants an answer before one can go on."""
    return page.locator(".jp-Dialog").all_inner_texts()


@pytest.mark.browser
@pytest.mark.timeout(900)
@pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(BROWSERS)} is on the PATH")
def test_a_notebook_opens_without_a_question_runs_and_is_saved_as_a_pair(copy, tmp_path):
    root, source, stored, expected = copy
    before = source.read_text(encoding="utf-8")
    with jupyterlab(root, tmp_path / "jupyter") as (url, token), chromium() as page:
        page.goto(f"{url}lab/tree/{NOTEBOOK}.ipynb?token={token}")
        kernel = page.locator(".jp-NotebookPanel-toolbar .jp-KernelName")
        named = "Python 3 (ipykernel)"
        until(lambda: asked(page) or kernel.all_inner_texts() == [named], "the kernel's name or a dialog")
        idle = page.locator('.jp-NotebookPanel .jp-Notebook-ExecutionIndicator[data-status="idle"]')
        until(lambda: asked(page) or idle.count(), "the kernel to be ready")
        assert asked(page) == []

        read = "path => fetch('/api/contents/' + path).then(reply => reply.json())"
        metadata = page.evaluate(read, f"{NOTEBOOK}.ipynb")["content"]["metadata"]
        assert metadata["jupytext"]["formats"] == "ipynb,py:percent"

        cell = page.locator(".jp-NotebookPanel .jp-CodeCell").last
        output = cell.locator(".jp-OutputArea-output")
        # JupyterLab draws cells one by one: until all are there, the last one may be another, with an output
        until(lambda: output.count() == 0, "the last cell, which was stored without its output")
        choose(page, "Run", "Run All Cells")
        expect(output).to_have_text(expected, timeout=PATIENCE * 1000)

        page.keyboard.press("ControlOrMeta+s")
        until(lambda: expected in stored.read_text(encoding="utf-8"), "the .ipynb to be saved")
        assert source.read_text(encoding="utf-8") == before

        cell.locator(".cm-content").click()
        page.keyboard.press("ControlOrMeta+End")
        page.keyboard.type(f"\n{LINE}")
        page.keyboard.press("ControlOrMeta+s")
        for half in (source, stored):
            until(lambda half=half: LINE in half.read_text(encoding="utf-8"), f"{half.name} to be saved")
        page.screenshot(path=tmp_path / "lab.png")
        assert asked(page) == []

    after = source.read_text(encoding="utf-8").splitlines()
    after.remove(LINE)
    assert after == before.splitlines()
