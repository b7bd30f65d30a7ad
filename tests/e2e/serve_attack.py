"""What hostile or broken clients send, byte for byte: never a hang, a crash, memory without bound, or a wrong status, and nothing lost for
the others. The last test mutates whole HTTP requests for KADENCE_FUZZ_SECONDS (3 by default).
"""
import json
import os
import random
import signal
import socket
import time
import unittest

import serve
from serve_faults import post, status
from serve_load import resident_mib

SECONDS = float(os.environ.get("KADENCE_FUZZ_SECONDS", "3"))
BODY = b'{"prompt": "x", "max_tokens": 1}'


def head(*fields, target="/v1/completions", method="POST", version="1.1"):
    lines = [f"{method} {target} HTTP/{version}", "Host: localhost", "Connection: close", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


class Attack(serve.ServeTest):
    FLAGS = ("--max-running-requests", 4, "--context-length", 4096, "--header-timeout", 1, "--body-timeout", 1, "--max-header-bytes", 8192, "--max-body-bytes", 16 << 20)

    def tearDown(self):
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})["usage"]["completion_tokens"], 2)
        self.server.idle()

    def answers(self, data, *wanted, **more):
        answer = self.server.raw(data, **more)
        self.assertIn(status(answer), wanted, (data[:100], answer[:300]))
        return answer

    def completion(self, text, *wanted):
        return self.answers(post(text), *wanted)

    # -- HTTP -------------------------------------------------------------------------------------------------------

    def test_lengths_that_disagree(self):
        n = f"Content-Length: {len(BODY)}"
        for fields in ((n, "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", n), (n, "Content-Length: 5"), ("Content-Length: -1",), ("Content-Length: 0x10",),
                       ("Content-Length: 5, 6",), ("Content-Length: 99999999999999999999999",), ("Content-Length : 5",), (" " + n,)):
            with self.subTest(fields=fields):
                self.answers(head(*fields) + BODY, 400, 413)

    def test_codings_other_than_chunked_end_the_connection(self):
        for value in ("gzip", "identity", "xchunked", "chunked, chunked", "chunked, identity", "gzip, chunked", "chunked\r\nTransfer-Encoding: chunked"):
            with self.subTest(value=value):
                data = f"POST /v1/cache/flush HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: {value}\r\n\r\n".encode()
                got = self.answers(data + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, 501)
                self.assertEqual(got.count(b"HTTP/1.1 "), 1, got)

    def test_chunks(self):
        chunked = head("Transfer-Encoding: chunked")
        self.answers(chunked + b"%x;name=value\r\n%s\r\n0\r\nTrailer: t\r\n\r\n" % (len(BODY), BODY), 200)
        pieces = b"".join(b"1\r\n%c\r\n" % c for c in BODY)
        self.answers(chunked + pieces + b"0\r\n\r\n", 200)
        for bad in (b"zz\r\n", b"-5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff0\r\n", b"5\r\nhelloXX0\r\n\r\n", b"\r\n\r\n", b"5 5\r\nhello\r\n0\r\n\r\n"):
            with self.subTest(chunk=bad):
                self.answers(chunked + bad, 400, 413)
        self.answers(chunked + b"20\r\nhalf", 408)

    def test_lines_without_an_end_are_not_kept(self):
        before = resident_mib(self.server.process.pid)
        for endless in (head("Transfer-Encoding: chunked") + b"5;", b"GET /health HTTP/1.1\r\nX: ", b"G",
                        head("Transfer-Encoding: chunked") + b"1\r\nx\r\n0\r\nT: "):
            with self.subTest(endless=endless[-10:]):
                self.answers(endless + b"a" * (40 << 20), 400, 431, 505)
        self.assertLess(resident_mib(self.server.process.pid), before + 40)

    def test_announced_bodies_hold_no_room(self):
        held = []
        try:
            for i in range(60):
                s = socket.create_connection((self.server.host, self.server.port), timeout=10)
                s.sendall(head(f"Content-Length: {16 << 20}") if i % 2 else head("Transfer-Encoding: chunked"))
                held.append(s)
            for _ in range(3):
                self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        finally:
            for s in held:
                s.close()

    def test_odd_heads(self):
        for data in (b"GET /health HTTP/1.1\nHost: localhost\n\n", b"GET /health HTTP/1.1\r\nX: a\0b\r\n\r\n", b"GET  /health HTTP/1.1\r\n\r\n", b"GET /health\r\n\r\n", b"\r\n" * 5000,
                     b"GET /health HTTP/1.1\r\n: v\r\n\r\n", b"GET /he alth HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.1\r\nX\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with self.subTest(data=data[:40]):
                self.answers(data, 400, 408, 431, 505)

    def test_methods_and_targets(self):
        for method, target, want in (("HEAD", "/health", 200), ("OPTIONS", "/v1/completions", 204), ("PUT", "/v1/models", 405), ("TRACE", "/health", 405), ("DELETE", "/v1/cache/flush", 405),
                                     ("FOO", "/health", 405), ("GET", "/v1/completions", 405), ("POST", "/health", 405), ("GET", "/v1/../health", 404), ("GET", "//health", 404),
                                     ("GET", "/health?a=b", 200), ("GET", "http://x/health", 200), ("GET", "/v1/models/%6badence%2dtiny", 200), ("GET", "/v1/models/%", 404), ("GET", "/v1/models/", 200),
                                     ("CONNECT", "x:1", 404), ("OPTIONS", "*", 204)):
            with self.subTest(method=method, target=target):
                answer = self.answers(head(method=method, target=target), want)
                if method == "HEAD" or want == 204:
                    self.assertEqual(answer.split(b"\r\n\r\n", 1)[1], b"")
                    self.assertEqual(want == 204, b"Content-Length" not in answer)

    def test_versions_and_expectations(self):
        n = f"Content-Length: {len(BODY)}"
        answer = self.answers(head(n, version="1.0") + BODY, 200)
        self.assertNotIn(b"chunked", answer)
        streamed = b'{"prompt": "x", "max_tokens": 2, "stream": true}'
        answer = self.answers(head(f"Content-Length: {len(streamed)}", version="1.0") + streamed, 200)
        self.assertNotIn(b"chunked", answer)
        self.assertTrue(answer.endswith(b"data: [DONE]\n\n"))
        self.assertNotIn(b"100 Continue", self.answers(head(n, "Expect: 100-continue", version="1.0") + BODY, 200))
        self.answers(head(n, "Expect: the-unexpected") + BODY, 200)
        with socket.create_connection((self.server.host, self.server.port), timeout=20) as s:
            s.sendall(head(n, "Expect: 100-Continue"))
            self.assertTrue(s.recv(4096).startswith(b"HTTP/1.1 100 Continue\r\n\r\n"))
            s.sendall(BODY)
            self.assertIn(b"200 OK", s.recv(65536))

    def test_content_types_do_not_matter(self):
        for kind in ("text/plain", "application/json; charset=utf-8", "application/x-www-form-urlencoded", "multipart/form-data"):
            self.answers(head(f"Content-Length: {len(BODY)}", f"Content-Type: {kind}") + BODY, 200)

    def test_slow_heads(self):
        for begin in (b"", b"POST /v1/completions HTTP/1.1\r\n"):
            slow = [socket.create_connection((self.server.host, self.server.port), timeout=10) for _ in range(50)]
            try:
                start, text = time.time(), begin + b"X-Slow: " + b"a" * 1000
                for c in text[: len(begin) + 3]:
                    for s in slow:
                        s.sendall(bytes([c]))
                while time.time() - start < 3 and not all(self.closed(s) for s in slow):
                    time.sleep(0.1)
                    for s in slow:
                        try:
                            s.sendall(b"a")
                        except OSError:
                            pass
                self.assertLess(time.time() - start, 3, "408 after a second, however many bytes came")
                self.server.get("/health")
            finally:
                for s in slow:
                    s.close()

    def closed(self, s):
        s.settimeout(0.001)
        try:
            return b"408" in s.recv(4096, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except OSError:
            return True

    def test_pipelines_cut_anywhere(self):
        one = head(f"Content-Length: {len(BODY)}").replace(b"close", b"keep-alive") + BODY
        with socket.create_connection((self.server.host, self.server.port), timeout=60) as s:
            s.sendall(one * 40 + head(target="/health", method="GET"))
            got = b""
            while piece := s.recv(65536):
                got += piece
        self.assertEqual(got.count(b"HTTP/1.1 200 OK"), 41)
        for cut in (1, len(one) // 2, len(one) - 1, len(one) * 3 + 7):
            with socket.create_connection((self.server.host, self.server.port), timeout=60) as s:
                s.sendall((one * 5)[:cut])

    def test_foreign_pages_and_borrowed_names(self):
        port = self.server.port
        for host, origin, want in ((f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", 200), (f"localhost:{port}", f"http://localhost:{port}", 200), ("[::1]", "http://[::1]", 200),
                                   (f"127.0.0.1:{port}", "http://evil.example", 403), (f"evil.example:{port}", f"http://evil.example:{port}", 403),
                                   ("127.evil.example", "http://127.evil.example", 403), (f"127.0.0.1:{port}", "null", 403), ("evil.example", None, 200)):
            with self.subTest(host=host, origin=origin):
                data = head(f"Origin: {origin}" if origin else "X: y", method="GET", target="/health").replace(b"Host: localhost", b"Host: " + host.encode())
                self.answers(data, want)

    def test_names_that_were_made_to_point_here(self):
        for host, want in (("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:1", 200), ("evil.example", 403), ("evil.example:80", 403), ("127.evil.example", 403)):
            for target in ("/v1/models", "/v1/status", "/v1/cache", "/metrics"):
                with self.subTest(host=host, target=target):
                    self.answers(head("X: y", method="GET", target=target).replace(b"Host: localhost", b"Host: " + host.encode()), want)

    def test_request_ids_are_ours_unless_sane(self):
        for given in ("a b", "x" * 65, 'quo"te', "é", "", "<script>"):
            answer = self.answers(head(f"X-Request-Id: {given}", method="GET", target="/health"), 200)
            self.assertIn(b"X-Request-Id: req-", answer)

    # -- JSON -------------------------------------------------------------------------------------------------------

    def test_nesting(self):
        for levels, want in ((10, 200), (63, 200), (64, 400), (100_000, 400)):
            self.completion('{"prompt": "x", "max_tokens": 1, "deep": ' + "[" * levels + "]" * levels + "}", want)
            self.completion('{"prompt": "x", "max_tokens": 1, "deep": ' + '{"a":' * levels + "1" + "}" * levels + "}", want)
        self.completion('{"prompt": "' + "[" * 1000 + '{\\"' * 100 + '", "max_tokens": 1}', 200)  # not nested at all
        self.completion("]" * 100_000, 400)

    def test_objects_with_many_members_cost_little(self):
        start = time.time()
        many = ",".join(f'"k{i}":1' for i in range(300_000))
        self.completion("{%s}" % many, 413)
        self.completion('{"prompt": "x", "inner": {%s}}' % many, 413)
        small = ",".join(f'"k{i}":1' for i in range(1000))
        self.completion('{"prompt": "x", "inner": [%s]}' % ",".join(["{%s}" % small] * 1000), 413)
        self.completion('{"prompt": "x", "max_tokens": 1, "inner": {%s}}' % small, 200)
        self.assertLess(time.time() - start, 20)

    def test_the_last_of_equal_keys_counts(self):
        self.completion('{"prompt": 5, "max_tokens": 1, "prompt": "x"}', 200)
        self.completion('{"prompt": "x", "max_tokens": 1, "prompt": 5}', 400)

    def test_numbers(self):
        for field, value in (("max_tokens", "-1"), ("max_tokens", "1.5"), ("max_tokens", "1.0"), ("max_tokens", "1e3"), ("max_tokens", "99999999999999999999"), ("max_tokens", "-0.0"),
                             ("n", "1000000000"), ("n", "0"), ("n", "-1"), ("n", "1e999"), ("temperature", "1e999"), ("temperature", "-1e-300"), ("temperature", "NaN"), ("temperature", "Infinity"),
                             ("logprobs", "1000"), ("logprobs", "-1"), ("logprobs", "true"), ("top_p", "0"), ("top_p", "1e-400"), ("top_k", "-2"), ("seed", "9223372036854775808"), ("seed", "0.5"),
                             ("repetition_penalty", "0"), ("min_p", "2"), ("stop_token_ids", "[4096]"), ("stop_token_ids", "[1e0]"), ("n", "01"), ("n", "0x1"), ("n", "+1")):
            with self.subTest(field=field, value=value):
                self.completion('{"prompt": "x", "max_tokens": 1, "%s": %s}' % (field, value), 400)

    def test_prompts(self):
        for prompt in ("[]", "[[]]", '""', '[""]', '["x", []]', '[[5], "x"]', '["x", 5]', "[5, null]", "[true]", "{}", "null", "[[5], []]", "[[[5]]]", "[5.0]", "[-1]", "[4096]", "[18446744073709551615]",
                       '"\\ud800"', '"\\udc00\\ud800"', '"\\ud800x"', '"\\u12"', '"\\x"', '["x"' + ', "x"' * 200 + "]"):
            with self.subTest(prompt=prompt[:40]):
                self.completion('{"prompt": %s, "max_tokens": 1}' % prompt, 400)
        for prompt in ('"\\u0000"', '"\\ud83d\\ude00"', '"\\uffff"', '" "', '"\\n"'):
            with self.subTest(prompt=prompt):
                self.completion('{"prompt": %s, "max_tokens": 1}' % prompt, 200)
        for bad in (b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80"):
            self.completion(b'{"prompt": "' + bad + b'"}', 400)
        self.completion(b"\xef\xbb\xbf" + BODY, 200)  # a byte order mark
        self.completion(BODY.decode().encode("utf-16"), 400)

    def test_stops_and_salts(self):
        for more in ('"stop": [""]', '"stop": ""', '"stop": ["x", 5]', '"stop": {}', '"cache_salt": "%s"' % ("x" * 257), '"stop": "%s"' % ("x" * 1025), '"stop": [%s]' % ",".join(['"x"'] * 17)):
            self.completion('{"prompt": "x", "max_tokens": 1, %s}' % more, 400)
        for more in ('"stop": []', '"stop": null', '"stop": ["%s"]' % ("x" * 1024), '"cache_salt": ""', '"cache_salt": "%s"' % ("x" * 256)):
            self.completion('{"prompt": "x", "max_tokens": 1, %s}' % more, 200)

    # -- while others work ------------------------------------------------------------------------------------------

    def test_flushes_while_it_generates(self):
        ask = {"prompt": [7 + i % 900 for i in range(900)], "max_tokens": 150, "temperature": 0, "ignore_eos": True}
        lone = self.server.post("/v1/completions", ask)["choices"][0]["text"]
        with socket.create_connection((self.server.host, self.server.port), timeout=60) as s:
            s.sendall(post(json.dumps({**ask, "stream": True})))
            got, stayed = s.recv(4096), 0
            while piece := s.recv(4096):
                got += piece
                stayed = max(stayed, self.server.post("/v1/cache/flush", "")["stayed"]["pages"])
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in got.split(b"\n") if line.startswith(b"data: {"))
        self.assertEqual(text, lone)
        self.assertGreater(stayed, 0, "what a request reads stays")
        self.server.idle()
        self.assertEqual(self.server.post("/v1/cache/flush", "")["stayed"], {"pages": 0, "states": 0})

    def test_salts_share_nothing(self):
        ids = [9 + i % 700 for i in range(700)]
        self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 1, "cache_salt": "one"})
        self.server.idle()
        cached = lambda more: self.server.post("/v1/completions", {"prompt": ids, "max_tokens": 1, **more})["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual([cached({"cache_salt": s}) for s in ("two", "on", "one ", "")] + [cached({})], [0, 0, 0, 0, 640])
        self.assertEqual(cached({"cache_salt": "one"}), 640)

    def test_mutated_requests(self):
        seeds = [post(json.dumps({"prompt": [5, 6, 7], "max_tokens": 2, "stream": True, "logprobs": 1, "echo": True})), post(json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}), "/v1/chat/completions"),
                 head("Transfer-Encoding: chunked") + b"20\r\n" + BODY + b"\r\n0\r\n\r\n", head(method="GET", target="/metrics"), post("", "/v1/cache/flush"), post(json.dumps({"prompt": "x"}), "/tokenize")]
        rng, end, seen = random.Random(9), time.time() + SECONDS, {}
        while time.time() < end:
            data = bytearray(rng.choice(seeds))
            for _ in range(rng.randrange(1, 5)):
                at = rng.randrange(len(data) or 1)
                kind = rng.randrange(5)
                if kind == 0:
                    data[at : at + 1] = bytes([rng.randrange(256)])
                elif kind == 1:
                    del data[at : at + rng.randrange(1, 20)]
                elif kind == 2:
                    data[at:at] = data[at : at + rng.randrange(1, 40)]
                elif kind == 3:
                    data[at:at] = rng.choice((b"\r\n", b"\n", b"\0", b":", b" ", b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n", b"\xff\xfe", b"99999999999", b"{", b"\\ud800"))
                else:
                    data = data[:at]
            answer = self.server.raw(bytes(data), timeout=0.03 if rng.random() < 0.8 else 0.3, shut=rng.random() < 0.3)
            code = status(answer)
            seen[code] = seen.get(code, 0) + 1
            self.assertIn(code, (None, 100, 200, 204, 400, 403, 404, 405, 408, 413, 431, 505), (bytes(data), answer[:300]))
            self.assertIsNone(self.server.process.poll())
        print("mutated requests:", dict(sorted(seen.items(), key=str)))
        self.assertGreater(seen.get(200, 0), 0)
        self.assertGreater(seen.get(400, 0), 0)


class Processes(unittest.TestCase):
    def begin(self, *flags, **more):
        server = serve.Server(*flags, **more)
        self.addCleanup(server.kill)
        return server

    def test_two_servers(self):
        one, two = self.begin(), self.begin()
        ask = {"prompt": "Once", "max_tokens": 8, "temperature": 0}
        self.assertEqual(*(s.post("/v1/completions", ask)["choices"][0]["text"] for s in (one, two)))
        with self.assertRaisesRegex(RuntimeError, "listening.*in use"):
            self.begin("--port", one.port)

    def test_a_second_signal_ends_at_once(self):
        server = self.begin("--shutdown-grace", 600)
        with socket.create_connection((server.host, server.port), timeout=60) as s:
            s.sendall(post(json.dumps({"prompt": "x", "max_tokens": 30000, "stream": True, "ignore_eos": True})))
            s.recv(4096)
            server.terminate()
            deadline = time.time() + 20
            while not any("second signal" in line for line in server.lines) and time.time() < deadline:
                time.sleep(0.05)
            self.assertIsNone(server.process.poll())
            self.assertEqual(server.request("GET", "/health/ready")[0], 503)
            time.sleep(0.2)
            server.terminate()
            self.assertEqual(server.wait(20), -signal.SIGTERM)

    def test_what_was_asked_and_what_is_served(self):
        server = self.begin("--state-slots", 12, "--max-running-requests", 64)
        lines = "".join(server.lines)
        self.assertRegex(lines, r"warning: --max-running-requests 64: the 12 state slots allow 9; for 64 use --state-slots \d+")
        self.assertIn("running requests: 9 of 64 asked", lines)
        self.assertIn("running requests: 9 of 64 asked", " ".join(server.get("/v1/status")["describe"]))

    def test_an_interrupt_while_idle(self):
        server = self.begin()
        server.process.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(20), 0)


if __name__ == "__main__":
    unittest.main()
