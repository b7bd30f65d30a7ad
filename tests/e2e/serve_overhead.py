"""Not a test: streamed tokens a second of server and engine loop over a model that costs nothing (server_testbed noop).

usage: serve_overhead.py [streams] [tokens] [cores], e.g. 32 5000 0 to pin the server to core 0.
"""
import json
import os
import socket
import sys
import threading
import time

import serve


def stream(server, tokens, counts):
    body = json.dumps({"prompt": "x", "max_tokens": tokens, "temperature": 0, "stream": True}).encode()
    with socket.create_connection((server.host, server.port), timeout=120) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        pieces = []
        while piece := s.recv(1 << 18):
            pieces.append(piece)
        got = b"".join(pieces)
        assert b"data: [DONE]" in got, got[:1000]
        counts.append(got.count(b'"finish_reason":null'))


def main():
    streams, tokens = (int(v) for v in (sys.argv[1:3] + ["32", "2000"][len(sys.argv) - 1 :])[:2])
    server = serve.Testbed("noop", streams)
    if len(sys.argv) > 3:
        for task in os.listdir(f"/proc/{server.process.pid}/task"):
            os.sched_setaffinity(int(task), {int(c) for c in sys.argv[3].split(",")})
    try:
        counts = []
        stream(server, 100, [])
        wall = time.perf_counter()
        threads = [threading.Thread(target=stream, args=(server, tokens, counts)) for _ in range(streams)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        wall = time.perf_counter() - wall
        total = streams * tokens
        assert counts == [tokens] * streams, counts
        print(f"{streams} streams of {tokens} tokens: {total / wall:,.0f} tokens a second")
    finally:
        server.kill()


if __name__ == "__main__":
    main()
