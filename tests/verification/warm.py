"""An interpreter that has torch imported already: each program it is asked to run is run by a fork of it.

Importing torch and what its optimizers pull in costs some ten times the processor time of a short observed run. What
a run sees is a process of its own with the environment, the folder and the arguments it was given; only the imports
are shared. Linux alone has what this takes; elsewhere programs are started the usual way.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    "torch",
    "torch.utils.serialization.config",
    "torch._dynamo",
    "torch._inductor.config",
    "torchvision.transforms",
    "PIL.Image",
)
COMPILES_BY_ITSELF = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""For runs of which there are many at the same time: with more, importing the compiler starts a process for each core, in each of them."""
_REQUEST_BYTES = 1 << 20

_CLIENT = """\
#!{python} -IS
import json, os, socket, sys
if sys.argv[1].startswith("-"):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
connection = socket.socket(socket.AF_UNIX)
connection.connect({path!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [len(request).to_bytes(8, "big")], [0, 1, 2])
connection.sendall(request)
answer = connection.recv(16)
sys.stdout.flush()
status = int(answer or b"-9")
if status < 0:
    import signal
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@contextmanager
def warm_interpreter(threads: int = 1, *, gpus: bool = False) -> Generator[Path, None, None]:
    """The path of a program to be used in place of ``sys.executable``; all but ``PROGRAM ARGS`` is started the usual way.

    Programs see no GPUs unless ``gpus``: what is imported here does not touch them, as a fork cannot use what its parent has of a device.
    """
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        yield Path(sys.executable)
        return
    with tempfile.TemporaryDirectory(prefix="torchopt-warm-") as folder:
        address, client = Path(folder) / "socket", Path(folder) / "python"
        client.write_text(_CLIENT.format(python=sys.executable, path=str(address)))
        client.chmod(0o700)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": str(threads)}
        environment |= COMPILES_BY_ITSELF if gpus else {"CUDA_VISIBLE_DEVICES": ""}
        server = subprocess.Popen(
            [sys.executable, __file__, str(address)],
            env=environment,
            stdin=subprocess.PIPE,  # closed when this process ends, however it does
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            if server.stdout.readline() != b"ready\n":
                raise RuntimeError("the warm interpreter did not start")
            yield client
        finally:
            server.kill()
            server.communicate()


def serve(address: str) -> None:
    """Run each program that is asked for at ``address`` in a fork; returns only in such a fork, to end it."""
    del sys.path[0]  # the folder of this file
    for name in PRELOADED:
        with suppress(ImportError):  # what an older torch does not have, no run needs
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here already is nothing a run has to look through
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    itself = os.pidfd_open(os.getpid())
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    request = _received(connection, int.from_bytes(head, "big"))
    program = os.fork()
    if program:
        _watch(program, connection, itself)
    connection.close()
    os.close(itself)
    _become(request, streams)


def _received(connection: socket.socket, size: int) -> list[Any]:
    data = bytearray()
    while len(data) < size:
        data += connection.recv(min(_REQUEST_BYTES, size - len(data)))
    return json.loads(data)


def _watch(program: int, connection: socket.socket, server: int) -> NoReturn:
    """Tell how the program ended; end it, and all of its group, when nobody waits for it any more or the server has ended."""
    for stream in (0, 1, 2):
        os.close(stream)
    handle = os.pidfd_open(program)
    select.select([handle, connection, server], [], [])
    ended, status = os.waitpid(program, os.WNOHANG)
    if not ended:
        with suppress(ProcessLookupError):
            os.killpg(program, signal.SIGKILL)
        os.waitpid(program, 0)
    else:
        with suppress(ProcessLookupError):
            os.killpg(program, signal.SIGKILL)  # what it left behind
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: list[Any], streams: list[int]) -> None:
    """Turn this process into one that was started as ``python PROGRAM ARGS``, and run the program."""
    os.setsid()
    arguments, folder, environment = request
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # What the modules imported above have read from the environment.
    sys.modules["torch._dynamo.config"].disable = os.environ.get("TORCHDYNAMO_DISABLE") == "1"  # type: ignore[attr-defined]
    tempfile.tempdir = None
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    added = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = [os.path.dirname(os.path.abspath(arguments[0])), *added]
    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    sys.argv = arguments
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=arguments[0], __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(compile(Path(arguments[0]).read_bytes(), arguments[0], "exec"), main.__dict__)


if __name__ == "__main__":
    serve(sys.argv[1])
