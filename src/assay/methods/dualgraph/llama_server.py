"""A llama.cpp server for one GGUF file, started for as long as it is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from assay.errors import InputError, MissingDependencyError
from assay.methods.dualgraph.openai_chat import OpenAIChat
from assay.methods.dualgraph.records import ServiceUnavailable

_START = 300.0  # seconds that loading a large file may take


class LlamaServerChat(OpenAIChat):
    """A GGUF file, served by the program `llama-server` of llama.cpp on a port of this machine.

    The program is found on the `PATH`; it ends with this object or with this process.

    Args:
        file: the GGUF file.
        context_tokens: the context that is reserved.
        sleep: waits; replaced in tests.

    Raises:
        InputError: the file is missing or no GGUF.
        MissingDependencyError: the program is not installed.
        ServiceUnavailable: it does not start; the message holds its last words.
    """

    def __init__(
        self, file: Path, *, context_tokens: int = 8192, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        try:
            with file.open("rb") as start:
                magic = start.read(4)
        except OSError as error:
            raise InputError(f"the model {file} cannot be read ({error.strerror})") from error
        if magic != b"GGUF":
            raise InputError(f"{file} is not a GGUF file")
        program = shutil.which("llama-server")
        if program is None:
            raise MissingDependencyError(
                "llama-server is not on the PATH; install llama.cpp (https://github.com/ggml-org/llama.cpp), "
                "or start a server yourself and pass llama_cpp:http://127.0.0.1:8080"
            )
        port = _free_port()
        base_url = f"http://127.0.0.1:{port}/v1"
        name = f"llama_cpp:{file.name}"
        super().__init__(file.stem, base_url, context_tokens=context_tokens, name=name, concurrency=1)
        command = [program, "--model", str(file), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--ctx-size", str(context_tokens)]
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._words, stderr=subprocess.STDOUT
        )
        self._stop = weakref.finalize(self, _end, process)
        try:
            self._wait(process, port, sleep)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server."""
        self._stop()
        super().close()

    def _wait(self, process: subprocess.Popen[bytes], port: int, sleep: Callable[[float], None]) -> None:
        import httpx

        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ServiceUnavailable(f"{self.name}: llama-server ended at once: {self._last_words()}")
            with contextlib.suppress(httpx.HTTPError):
                if (
                    httpx.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code
                    == 200
                ):
                    return
            sleep(0.1)
        raise ServiceUnavailable(f"{self.name}: llama-server was not ready after {_START:.0f} s")

    def _last_words(self) -> str:
        self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, self._words.tell() - 2000))
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
