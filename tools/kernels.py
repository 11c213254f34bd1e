"""Kernels for the notebooks under test, each a fork of a process that has imported the large libraries and no more.

A notebook needs a kernel of its own, and a new Python spends two to three seconds of the processor on torch alone. The
process that is forked has run nothing of the book, so a notebook finds what it would find after the same imports. It
must not have threads, which a fork would lose: where libraries start some, kernels start as usual. It imports only
libraries that do not look around while they are imported: pandas would see no kernel and shorten its tables, and
matplotlib would read no backend for figures.

Kernels listen on files in a folder of their own: two processes that start kernels at the same time may choose one port.
"""

import importlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

QUIET = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # else the allocator of pyarrow starts a thread
TRANSPORT = "ipc" if os.name == "posix" else "tcp"  # Windows has only ports
LIBRARIES = ("torch._dynamo", "numpy", "scipy.stats", "pyarrow.compute", "ipykernel.kernelapp")


def serve() -> None:
    """Import the libraries and print the number of threads; then fork a kernel for each line of stdin, or poll one."""
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it at import: kernels end with this process
    del sys.path[0]  # the folder of this file
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print(len(os.listdir("/proc/self/task")), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "poll" in asked:
            pid, status = os.waitpid(asked["poll"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        elif pid := os.fork():
            os.setpgid(pid, pid)  # a kernel is killed with its group: before anybody knows its number
            print(pid, flush=True)
        else:
            become_kernel(**asked)


def become_kernel(argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """Turn this process into a kernel, without a way back."""
    import numpy
    from ipykernel import kernelapp

    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.environ.clear()
    os.environ.update(env | {"JPY_PARENT_PID": str(os.getppid())})
    os.chdir(cwd)
    numpy.random.seed()  # from the system, as an import does
    sys.argv = argv
    kernelapp.launch_new_instance()
    os._exit(0)


class Kernel:
    """A forked kernel with what jupyter_client uses of a Popen."""

    stdin = stdout = stderr = code = None

    def __init__(self, ask: Callable, command: list[str], cwd: str | None, env: dict[str, str]):
        self.ask, argv = ask, command[command.index("ipykernel_launcher") :]
        self.pid = ask(argv=argv, cwd=cwd or os.getcwd(), env=env)

    def poll(self) -> int | None:
        if self.code is None:
            self.code = self.ask(poll=self.pid)
        return self.code

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        return self.code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def fork_kernels(env: dict[str, str]) -> Callable[[], None]:
    """Have jupyter_client fork the kernels that this process starts, where that is safe; returns what ends it.

    `env` is what all of them share: hash seeds, threads and progress bars are settled when libraries are imported.
    """
    from jupyter_client.provisioning import local_provisioner

    server = subprocess.Popen(
        [sys.executable, __file__, *LIBRARIES],
        env={**os.environ, **env, **QUIET},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    lock = threading.Lock()

    def ask(**question) -> int | None:
        with lock:
            print(json.dumps(question), file=server.stdin, flush=True)
            return json.loads(server.stdout.readline())

    usual = local_provisioner.launch_kernel
    if json.loads(server.stdout.readline()) == 1:
        local_provisioner.launch_kernel = lambda command, cwd=None, env=None, **_: Kernel(ask, command, cwd, env)

    def end() -> None:
        local_provisioner.launch_kernel = usual
        server.communicate(timeout=60)

    return end


def on_files(folder: Path) -> dict[str, str]:
    """Options of a KernelManager whose kernel listens on files in `folder`, which must have a short path.

    A manager chooses free ports and lets go of them; the kernel binds them a second later, unless another process
    has been given one of them meanwhile. The path of such a file has at most 103 bytes.
    """
    return {"transport": TRANSPORT, "connection_file": str(folder / f"{secrets.token_hex(4)}.json")}


def nbval_on_files() -> Callable[[], None]:
    """Have nbval start kernels that listen on files; returns what ends it."""
    from nbval import kernel

    usual, folder = kernel.KernelManager, tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    kernel.KernelManager = lambda **options: usual(**options, **on_files(Path(folder.name)))

    def end() -> None:
        kernel.KernelManager = usual
        folder.cleanup()

    return end


if __name__ == "__main__":
    serve()
