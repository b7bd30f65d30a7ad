"""What clients and machines do wrong: the right status or a clean close, and nothing lost for the others."""
import json
import random
import resource
import socket
import threading
import time
import unittest

import serve

FLAGS = ("--max-running-requests", 4, "--context-length", 4096, "--header-timeout", 1, "--body-timeout", 1, "--max-header-bytes", 8192, "--max-body-bytes", 16 << 20)


def post(body, path="/v1/completions", headers=""):
    if isinstance(body, str):
        body = body.encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n".encode() + body


def status(raw):
    return int(raw.split(b" ", 2)[1]) if raw.startswith(b"HTTP/1.1 ") else None


class Faults(serve.ServeTest):
    FLAGS = FLAGS

    def tearDown(self):
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})["usage"]["completion_tokens"], 2)
        self.server.idle()

    def wants(self, data, want, **more):
        answer = self.server.raw(data, **more)
        self.assertEqual(status(answer), want, answer[:300])
        if want >= 400:
            self.assertIn("error", json.loads(answer.split(b"\r\n\r\n", 1)[1]))

    def test_half_requests(self):
        for data in (b"P", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", post('{"prompt": "x"}')[:-5]):
            with self.subTest(data=data):
                self.wants(data, 408)
                self.assertEqual(self.server.raw(data, shut=True), b"")

    def test_huge_headers_and_bodies(self):
        self.wants(b"GET /health HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431)
        self.wants(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 431)
        self.wants(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413)
        self.wants(b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b"a" * (1 << 20) + b"\r\n") * 20, 413)

    def test_no_http(self):
        for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10, b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\0" * 100, b"GET / HTTP/3.7\r\n\r\n"):
            with self.subTest(data=data[:20]):
                self.assertIn(status(self.server.raw(data)), (400, 505))

    def test_bad_json_and_utf8(self):
        for body in (b"", b"{", b"[]", b"null", b"{'prompt': 'x'}", b'{"prompt": "\xff\xfe"}', b'{"prompt": "\xed\xa0\x80"}', b"\xef\xbb", b'{"prompt": "x"} extra', b"[" * 100_000,
                     b'{"prompt": NaN}', b'{"prompt": "x", "max_tokens": 1e400}'):
            with self.subTest(body=body[:30]):
                self.wants(post(body), 400)

    def test_a_million_tokens(self):
        self.wants(post(json.dumps({"prompt": [7] * 1_000_000})), 400)
        self.wants(post(json.dumps({"prompt": "word " * 1_000_000})), 400)
        self.wants(post(json.dumps({"messages": [{"role": "user", "content": "word " * 1_000_000}]}), "/v1/chat/completions"), 400)

    def test_pipelining_and_keep_alive(self):
        one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection((self.server.host, self.server.port), timeout=20) as s:
            s.sendall(one * 50)
            got = b""
            while got.count(b"HTTP/1.1 200 OK") < 50 or not got.endswith(b"}"):
                got += s.recv(65536)
            s.sendall(one)
            self.assertIn(b"200 OK", s.recv(65536))

    def test_expect_continue(self):
        body = b'{"prompt": "x", "max_tokens": 1}'
        head = post(body, headers="Expect: 100-continue\r\n")[: -len(body)]
        with socket.create_connection((self.server.host, self.server.port), timeout=20) as s:
            s.sendall(head)
            self.assertTrue(s.recv(4096).startswith(b"HTTP/1.1 100 Continue\r\n\r\n"))
            s.sendall(body)
            self.assertIn(b"200 OK", s.recv(65536))

    def test_disconnects_free_what_they_held(self):
        before = self.server.metric("kadence_aborts_total")
        rng = random.Random(5)
        for i in range(30):
            body = {"prompt": [rng.randrange(5, 4000) for _ in range(rng.choice((3, 400, 2000)))], "max_tokens": 2000, "ignore_eos": True, "stream": bool(i % 2), "n": 1 + i % 3}
            with socket.create_connection((self.server.host, self.server.port), timeout=20) as s:
                s.sendall(post(json.dumps(body)))
                s.settimeout(0.02 + 0.2 * rng.random())
                try:
                    s.recv(65536)
                except TimeoutError:
                    pass
        cache = self.server.idle()
        self.assertEqual(cache["slots"]["working"] + cache["slots"]["reserved"] + cache["slots"]["pinned"], 0)
        self.assertEqual(cache["pages"]["working"] + cache["pages"]["pinned"], 0)
        self.assertGreater(self.server.metric("kadence_aborts_total"), before)

    def test_ten_thousand_idle_connections(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        count = min(10_000, hard - 1000)
        if count < 10_000:
            print(f"only {count} idle connections: the limit of open files is {hard}")
        idle = []
        try:
            for _ in range(count):
                idle.append(socket.create_connection((self.server.host, self.server.port), timeout=20))
            self.assertGreaterEqual(self.server.get("/v1/status")["connections"], count)
            self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        finally:
            for s in idle:
                s.close()

    def test_utf8_is_never_cut_in_a_stream(self):
        ids = self.server.post("/tokenize", {"prompt": "\U0001f600日本語 naïve \U0001f469\u200d\U0001f52c " * 10})["tokens"]
        answer = self.server.raw(post(json.dumps({"prompt": ids, "max_tokens": 200, "temperature": 2, "seed": 3, "stream": True, "ignore_eos": True})), timeout=60)
        for line in answer.split(b"\n"):
            if line.startswith(b"data: {"):
                line.decode("utf-8")  # strict

    def test_a_reader_that_sleeps(self):
        with socket.create_connection((self.server.host, self.server.port), timeout=60) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.sendall(post(json.dumps({"prompt": "x", "max_tokens": 300, "stream": True, "ignore_eos": True})))
            time.sleep(1)
            got = b""
            while piece := s.recv(4096):
                got += piece
        self.assertIn(b"data: [DONE]", got)


class Limits(serve.ServeTest):
    FLAGS = ("--max-running-requests", 1, "--max-queued", 1, "--max-connections", 20, "--request-timeout", 2)

    def test_a_full_queue_says_429(self):
        codes, body = [], {"prompt": "x", "max_tokens": 150, "ignore_eos": True}
        def ask():
            got, headers, _ = self.server.request("POST", "/v1/completions", body)
            codes.append((got, headers.get("retry-after")))
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertIn((429, "1"), codes)
        self.assertIn((200, None), codes)
        self.assertLessEqual({c for c, _ in codes}, {200, 429, 504})

    def test_time_runs_out(self):
        long = {"prompt": "x", "max_tokens": 30000, "ignore_eos": True}
        got, _, answer = self.server.request("POST", "/v1/completions", long)
        self.assertEqual((got, json.loads(answer)["error"]["code"]), (504, "timeout"))
        _, _, answer = self.server.request("POST", "/v1/completions", {**long, "stream": True})
        self.assertIn(b'"code":"timeout"', answer)
        self.assertNotIn(b"[DONE]", answer)
        self.server.idle()

    def test_too_many_connections(self):
        held = [socket.create_connection((self.server.host, self.server.port), timeout=10) for _ in range(20)]
        try:
            time.sleep(0.3)
            self.assertEqual(status(self.server.raw(b"GET /health HTTP/1.1\r\n\r\n", timeout=5)), 503)
        finally:
            for s in held:
                s.close()
        time.sleep(0.3)
        self.server.get("/health")


class Keys(serve.ServeTest):
    @classmethod
    def setUpClass(cls):
        cls.server = serve.Server("--cors-origin", "http://good.example", env={"KADENCE_API_KEY": "sesame"})
        cls.addClassCleanup(cls.server.kill)

    def test_key(self):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}, {"Authorization": "Bearer sesame2"}):
            self.refused("/v1/completions", {"prompt": "x"}, status=401, headers=headers)
        good = {"Authorization": "Bearer sesame"}
        self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=good)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        self.assertEqual(self.server.request("GET", "/metrics")[0], 401)

    def test_origins(self):
        good = {"Authorization": "Bearer sesame", "Origin": "http://good.example"}
        got, headers, _ = self.server.request("GET", "/v1/models", headers=good)
        self.assertEqual((got, headers["access-control-allow-origin"]), (200, "http://good.example"))
        self.assertEqual(self.server.request("OPTIONS", "/v1/completions", headers=good)[0], 204)
        self.assertEqual(self.server.request("GET", "/v1/models", headers={**good, "Origin": "http://bad.example"})[0], 403)


class Ends(unittest.TestCase):
    def begin(self, *flags, **more):
        server = serve.Server(*flags, **more)
        self.addCleanup(server.kill)
        return server

    def stream(self, server, tokens):
        s = socket.create_connection((server.host, server.port), timeout=60)
        self.addCleanup(s.close)
        s.sendall(post(json.dumps({"prompt": "x", "max_tokens": tokens, "stream": True, "ignore_eos": True})))
        got = b""
        while b'"text":' not in got:
            got += s.recv(4096)
        return s, got

    def rest(self, s, got):
        while piece := s.recv(65536):
            got += piece
        return got

    def test_term_lets_a_stream_finish(self):
        server = self.begin("--shutdown-grace", 60)
        s, got = self.stream(server, 200)
        server.terminate()
        self.assertIn(b"data: [DONE]", self.rest(s, got))
        self.assertEqual(server.wait(), 0)

    def test_term_cancels_what_takes_too_long(self):
        server = self.begin("--shutdown-grace", 0.5)
        s, got = self.stream(server, 30000)
        server.terminate()
        got = self.rest(s, got)
        self.assertIn(b'"code":"shutting_down"', got)
        self.assertNotIn(b"[DONE]", got)
        self.assertEqual(server.wait(), 0)

    def test_a_full_disk_for_logs(self):
        server = self.begin(log="/dev/full")
        for _ in range(3):
            server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        time.sleep(0.2)
        self.assertGreaterEqual(server.metric("kadence_log_lines_dropped_total"), 3)
        server.terminate()
        self.assertEqual(server.wait(), 0)

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            with self.assertRaisesRegex(RuntimeError, "listening"):
                self.begin("--port", taken.getsockname()[1])


if __name__ == "__main__":
    unittest.main()
