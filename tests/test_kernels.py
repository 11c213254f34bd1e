"""Kernels that are forks: fresh each time, interrupted and ended like others, gone with the process that has them."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel

from tools import execute, kernels
from tools.notebooks import ROOT


@pytest.fixture
def forked(monkeypatch):
    """Kernels started in this test are forks of a process that has imported no more than they need."""
    monkeypatch.setattr(kernels, "LIBRARIES", ("ipykernel.kernelapp",))
    end = kernels.fork_kernels({})
    yield end
    end()


@pytest.fixture
def start(tmp_path):
    """Starts a kernel in a folder of this test; all are stopped."""
    started = []

    def start():
        started.append(RunningKernel(CURRENT_ENV_KERNEL_NAME, cwd=str(tmp_path)))
        return started[-1]

    yield start
    for kernel in started:
        kernel.stop()


@pytest.fixture
def on_files():
    """Kernels that nbval starts in this test listen on files."""
    end = kernels.nbval_on_files()
    yield
    end()


@pytest.fixture
def ports_taken(monkeypatch):
    """Every port that a manager chooses belongs to another process by the time its kernel wants it."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        chosen = SimpleNamespace(getsockname=other.getsockname)
        for name in ("setsockopt", "bind", "close"):
            setattr(chosen, name, lambda *_: None)
        usual = {"SOL_SOCKET": socket.SOL_SOCKET, "SO_LINGER": socket.SO_LINGER}
        monkeypatch.setattr("jupyter_client.connect.socket", SimpleNamespace(socket=lambda: chosen, **usual))
        yield


def run(kernel, source):
    """What a cell prints, or the name of its error."""
    asked = kernel.execute_cell_input(source)
    kernel.await_reply(asked, timeout=60)
    while True:
        message = kernel.get_message("iopub", timeout=10)
        if message["parent_header"].get("msg_id") == asked and message["msg_type"] in ("stream", "error"):
            return message["content"].get("text", message["content"].get("ename")).strip()


def test_kernels_are_fresh_and_of_their_place(forked, start, monkeypatch, tmp_path):
    first = start()
    assert run(first, "a = 1; import agentrl, os; os.environ['SEEN'] = 'by one'; print(os.getcwd())") == str(tmp_path)
    monkeypatch.setenv("SEEN", "by all")
    second = start()
    seen = "import os, sys; print('a' in globals(), 'agentrl' in sys.modules, os.environ['SEEN'], os.getpid())"
    assert run(second, seen) == f"False False by all {second.km.provisioner.pid}"
    assert isinstance(second.km.provisioner.process, kernels.Kernel)
    assert second.km.provisioner.pid != first.km.provisioner.pid
    assert run(second, "import random; print(random.random())") != run(first, "import random; print(random.random())")


def test_a_kernel_is_interrupted_and_goes_on(forked, start):
    kernel = start()
    asked = kernel.execute_cell_input("import time\nprint('here', flush=True)\ntime.sleep(600)")
    while kernel.get_message("iopub", timeout=60)["msg_type"] != "stream":
        pass
    kernel.interrupt()
    kernel.await_reply(asked, timeout=60)
    assert run(kernel, "print(2)") == "2"


def test_a_dead_kernel_is_noticed_and_the_next_one_lives(forked, start):
    kernel = start()
    process = kernel.km.provisioner.process
    kernel.execute_cell_input("import os; os._exit(7)")
    assert process.wait() == 7 and not kernel.is_alive()
    assert run(start(), "print(3)") == "3"


def test_a_stopped_kernel_is_killed_and_nobody_else(forked, start):
    kernel, other = start(), start()
    process = kernel.km.provisioner.process
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert run(other, "print(4)") == "4"


@pytest.mark.timeout(120)
def test_kernels_do_without_ports_that_another_process_may_take(ports_taken, on_files, start, tmp_path):
    assert run(start(), "print(5)") == "5"
    path = tmp_path / "a.py"
    path.write_text("# %%\nprint(6)\n")
    (cell,) = execute.execute_once(path, dict(os.environ), 60, lambda megabytes: None).cells
    assert cell.outputs[0].text == "6\n"


def test_kernels_end_with_the_process_that_started_them(tmp_path):
    """Even if it is killed: nothing is left that holds memory or a port."""
    code = (
        "from tools import kernels\nfrom nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel\nimport os\n"
        "kernels.LIBRARIES = ('ipykernel.kernelapp',)\nkernels.fork_kernels({})\n"
        "print(RunningKernel(CURRENT_ENV_KERNEL_NAME).km.provisioner.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    pid, deadline = int(killed.stdout), time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline, f"kernel {pid} lives without its parent"
        time.sleep(0.1)


def is_running(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def test_where_a_library_starts_a_thread_kernels_start_as_usual(monkeypatch, tmp_path):
    from jupyter_client.provisioning import local_provisioner

    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(kernels, "LIBRARIES", ("threaded",))
    usual = local_provisioner.launch_kernel
    end = kernels.fork_kernels({})
    assert local_provisioner.launch_kernel is usual
    end()
