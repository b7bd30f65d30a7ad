"""Helpers of the server's tests: a server of its own for each test class, raw HTTP, and the official client."""
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from cli import BINARY, ROOT, TINY


TESTBED = os.environ.get("KADENCE_TESTBED", str(pathlib.Path(BINARY).parent / "server/server_testbed"))


def venv_python():
    """The Python of .venv, or None and the reason."""
    done = subprocess.run([str(ROOT / "tools/venv.sh")], capture_output=True, text=True, check=False)
    return (done.stdout.strip(), "") if done.returncode == 0 else (None, done.stderr.strip())


def with_client():
    """Runs this very script under .venv's Python, which has the openai client; skips visibly (status 77) without one."""
    try:
        import openai  # noqa: F401
    except ImportError:
        python, why = venv_python()
        if python is None or os.environ.get("KADENCE_IN_VENV"):
            print(f"SKIPPED: the openai client is not to be had: {why}")
            sys.exit(77)
        os.execve(python, [python, *sys.argv], {**os.environ, "KADENCE_IN_VENV": "1"})


class Server:
    """`kadence serve` on a free port."""

    def __init__(self, *flags, model=TINY, env=None, log=None):
        self.log = log or tempfile.NamedTemporaryFile(suffix=".log", delete=False).name
        port = () if "--port" in flags else ("--port", 0)
        command = [BINARY, "serve", "--model", model, *map(str, port), "--log-file", self.log, *map(str, flags)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"serving (\S+) at http://([\d.]+):(\d+)", line)
            if found:
                self.model, self.host, self.port = found[1], found[2], int(found[3])
                break
        else:
            self.kill()
            raise RuntimeError("no server: " + "".join(self.lines))
        self._drain = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._drain.start()
        self.url = f"http://{self.host}:{self.port}"

    def request(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, bytes) of one request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, dict((k.lower(), v) for k, v in answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path, **more):
        status, _, body = self.request("GET", path, **more)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def post(self, path, body, status=200, **more):
        got, _, answer = self.request("POST", path, body, **more)
        assert got == status, (path, got, answer[:2000])
        return json.loads(answer)

    def raw(self, data, timeout=30, shut=False):
        """Everything the server says to these bytes until it closes or falls silent for `timeout`."""
        with socket.create_connection((self.host, self.port), timeout=timeout) as s:
            try:
                s.sendall(data)
                if shut:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            out = b""
            try:
                while piece := s.recv(65536):
                    out += piece
            except (TimeoutError, ConnectionResetError):
                pass
            return out

    def idle(self, timeout=60):
        """Waits until nothing runs; the accounting must be right then. Returns /v1/cache."""
        end = time.time() + timeout
        while time.time() < end:
            requests = self.get("/v1/status")["requests"]
            if not any(requests[k] for k in ("waiting", "running", "replaying", "in_flight")):
                cache = self.get("/v1/cache")
                assert cache["accounting"] == "ok", cache["accounting"]
                return cache
            time.sleep(0.05)
        raise AssertionError(f"not idle after {timeout} s: {requests}")

    def metric(self, name, **labels):
        _, _, text = self.request("GET", "/metrics")
        for line in text.decode().splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                if all(f'{k}="{v}"' in line for k, v in labels.items()):
                    return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds=60):
        """Its exit status."""
        return self.process.wait(seconds)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()


class Testbed(Server):
    """The server over a scripted model: "tools" calls the first declared tool, "noop" costs nothing."""

    def __init__(self, what, running=64):
        self.process = subprocess.Popen([TESTBED, what, str(running)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        found = re.search(r"serving (\S+) at http://([\d.]+):(\d+)", self.process.stdout.readline())
        self.model, self.host, self.port = found[1], found[2], int(found[3])
        self.url = f"http://{self.host}:{self.port}"

    def kill(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(30)


class ServeTest(unittest.TestCase):
    FLAGS = ()
    MODEL = TINY

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS, model=cls.MODEL)
        cls.addClassCleanup(cls.server.kill)

    def refused(self, path, body, status=400, param=None, says=(), **more):
        """Wants an error in OpenAI's form that names `param`."""
        got, _, answer = self.server.request("POST", path, body, **more)
        self.assertEqual(got, status, answer[:500])
        error = json.loads(answer)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        if param is not None:
            self.assertEqual(error["param"], param, error)
        for words in (says,) if isinstance(says, str) else says:
            self.assertIn(words, error["message"])
        return error
