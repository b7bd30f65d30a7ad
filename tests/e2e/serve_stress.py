"""Many kinds of requests at once, aborts, flushes and a shutdown in the middle, over the scripted models of server_testbed: made for the sanitizer
builds, which end the process with a status when they found something.
"""
import json
import os
import random
import socket
import threading
import time
import unittest

import serve

SECONDS = float(os.environ.get("KADENCE_STRESS_SECONDS", "4"))
TOOL = {"type": "function", "function": {"name": "f"}}


def body_of(rng):
    if rng.random() < 0.25:
        chat = {"messages": [{"role": "user", "content": "hi there"}], "stream": rng.random() < 0.5, "max_tokens": 50}
        more = rng.choice(({"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "required"}, {"response_format": {"type": "json_object"}, "n": 2}))
        return "/v1/chat/completions", {**chat, **more}
    body = {"prompt": "x" * rng.randrange(1, 400), "max_tokens": rng.randrange(0, 200), "stream": rng.random() < 0.6, "n": rng.choice((1, 1, 2, 3)), "temperature": 0}
    if rng.random() < 0.3:
        body["stop"] = ["ab", "xyz"]
    if rng.random() < 0.3:
        body["logprobs"] = 2
        body["echo"] = rng.random() < 0.5
    return "/v1/completions", body


def request(path, body, close=True):
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: %s\r\nContent-Length: %d\r\n\r\n" % (path.encode(), b"close" if close else b"keep-alive", len(data)) + data


class Stress(unittest.TestCase):
    def run_on(self, what):
        server = serve.Testbed(what, 8)
        end, errors, counts = time.time() + SECONDS, [], {"whole": 0, "aborted": 0}

        def worker(seed):
            rng = random.Random(seed)
            try:
                while time.time() < end and not errors:
                    kind = rng.randrange(6)
                    if kind == 0:
                        for path in ("/v1/cache", "/metrics", "/v1/status", "/health"):
                            assert server.request("GET", path)[0] == 200
                        if rng.random() < 0.2:
                            server.post("/v1/cache/flush", "")
                        continue
                    if kind == 1:
                        assert server.request("POST", "/v1/completions", '{"bad')[0] == 400
                        continue
                    with socket.create_connection((server.host, server.port), timeout=60) as s:
                        s.sendall(request(*body_of(rng)))
                        if rng.random() < 0.4:
                            s.settimeout(rng.random() * 0.02 + 0.001)
                            try:
                                s.recv(1000)
                            except TimeoutError:
                                pass
                            counts["aborted"] += 1
                            continue
                        got = b""
                        while piece := s.recv(65536):
                            got += piece
                        assert got.startswith(b"HTTP/1.1 200 OK"), got[:500]
                        counts["whole"] += 1
            except Exception as e:  # noqa: BLE001 - every failure counts
                errors.append(repr(e))

        threads = [threading.Thread(target=worker, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors[:3], [])
        cache = server.idle()
        self.assertEqual(cache["slots"]["working"] + cache["slots"]["reserved"] + cache["slots"]["pinned"], 0)
        self.assertGreater(min(counts.values()), 0)
        streams = []
        for _ in range(8):
            s = socket.create_connection((server.host, server.port), timeout=60)
            s.sendall(request("/v1/completions", {"prompt": "x", "max_tokens": 60000, "stream": True}, close=False))
            streams.append(s)
        server.kill()
        for s in streams:
            s.close()
        self.assertEqual(server.process.returncode, 0)

    def test_noop(self):
        self.run_on("noop")

    def test_tools(self):
        self.run_on("tools")


if __name__ == "__main__":
    unittest.main()
