"""JupyterLab and a headless browser for tests, every wait with an end."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import sync_playwright

from tools.kernels import TRANSPORT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
LIMIT = 900  # seconds that a test with a browser may take
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
SERVER = [
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--port=0",  # any free one
    f"--KernelManager.transport={TRANSPORT}",
    # should a test be killed, its browser goes with it, then the kernels and the server end: later than any test may
    f"--ServerApp.shutdown_no_activity_timeout={LIMIT}",
    f"--MappingKernelManager.cull_idle_timeout={LIMIT}",
    "--MappingKernelManager.cull_interval=30",
]
# for files that kernels listen on: their names are long, and the whole path has at most 103 bytes
SHORT = {"dir": "/tmp" if TRANSPORT == "ipc" else None, "ignore_cleanup_errors": True}
# where a reader's own settings, workspaces and kernels would come from
PLACES = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
)
PATIENCE = 240  # seconds; much of it only where the machine is busy
KERNEL = "Python 3 (ipykernel)"
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(BROWSERS)} is on the PATH")


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
    scratch.mkdir()
    with tempfile.TemporaryDirectory(**SHORT) as runtime, (scratch / "server.log").open("w") as log:
        token = secrets.token_hex(16)
        env = {**os.environ, **{name: str(scratch / name) for name in PLACES}}
        env |= {"JUPYTER_RUNTIME_DIR": runtime, "JUPYTER_TOKEN": token}
        command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", *SERVER]
        server = subprocess.Popen(command, cwd=root, env=env, stdout=log, stderr=log)

        def address():
            assert server.poll() is None, f"JupyterLab ended:\n{Path(log.name).read_text()[-2000:]}"
            for card in Path(runtime).glob("jpserver-*.json"):
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
    """A headless browser whose pages share a cache: gives its context, where `new_page` opens one."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS, timeout=PATIENCE * 1000)
        try:
            context = browser.new_context(viewport={"width": 1280, "height": 1000})
            context.set_default_timeout(PATIENCE * 1000)
            yield context
        finally:
            browser.close()


def choose(page, menu, item):
    """Open a menu of the menu bar and click an item."""
    page.get_by_role("menuitem", name=menu, exact=True).click()
    page.locator(".lm-Menu-item").filter(has_text=re.compile(f"^{item}")).click()


def asked(page):
    """The texts of all dialogs; a dialog, unlike a notification, wants an answer before one can go on."""
    return page.locator(".jp-Dialog").all_inner_texts()


def panels(page):
    """(name of the kernel, status) of each notebook that is open, read at one moment."""
    return page.locator(".jp-NotebookPanel").evaluate_all(
        "all => all.map(one => [one.querySelector('.jp-KernelName')?.innerText,"
        " one.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status])"
    )


def open_notebook(page, url, token, notebook):
    """Show a notebook (its path without ending) alone and wait until its kernel is ready; no dialog may come.

    JupyterLab opens again what was open in its workspace before. Beside another notebook, the commands of
    the menus would go to the one that happens to be in front, so each call has a workspace of its own. It
    also drops without a word what one runs before the session has a kernel. An indicator without a kernel is
    idle too, so name and status are read together.
    """
    page.goto(f"{url}lab/workspaces/{secrets.token_hex(8)}/tree/{notebook}.ipynb?token={token}")
    until(lambda: asked(page) or panels(page) == [[KERNEL, "idle"]], "the notebook's kernel or a dialog")
    assert asked(page) == []


def save(page, notebook):
    """Save the notebook (its path without ending) and wait for the answer: two saves at once are a conflict."""
    with page.expect_response(lambda reply: is_save(reply.request, notebook)) as reply:
        page.keyboard.press("ControlOrMeta+s")
    assert reply.value.ok, reply.value.status_text


def is_save(request, notebook):
    return request.method == "PUT" and urlsplit(request.url).path.endswith(f"/api/contents/{notebook}.ipynb")


def metadata_of(page, notebook):
    """The metadata of a notebook as the server gives it."""
    read = "path => fetch('/api/contents/' + path).then(reply => reply.json())"
    return page.evaluate(read, f"{notebook}.ipynb")["content"]["metadata"]
