"""Load: many concurrent streams with aborts at random points. KADENCE_LOAD_SECONDS and KADENCE_LOAD_STREAMS make it longer and wider
(300 and 200 for the long run). Every completed output equals its lone run, /health answers meanwhile, memory stays, nothing leaks.
"""
import http.client
import json
import os
import random
import threading
import time
import unittest

import serve

SECONDS = float(os.environ.get("KADENCE_LOAD_SECONDS", "10"))
STREAMS = int(os.environ.get("KADENCE_LOAD_STREAMS", "24"))


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


class Load(serve.ServeTest):
    FLAGS = ("--max-running-requests", 16, "--context-length", 2048, "--max-queued", 1000, "--mamba-track-interval", 256)

    def bodies(self):
        rng = random.Random(11)
        common = [rng.randrange(5, 4000) for _ in range(512)]
        out = []
        for i in range(24):
            prompt = common[: 64 * rng.randrange(0, 8)] + [rng.randrange(5, 4000) for _ in range(rng.randrange(1, 200))]
            out.append({"prompt": prompt, "max_tokens": rng.randrange(1, 24), "temperature": float(i % 2), "seed": i, "stream": True, "ignore_eos": True})
        return out

    def stream(self, body, abort_after=None):
        """Text and finish reason, or None when aborted."""
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=300)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body))
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError((answer.status, answer.read()))
            text, reason, events = "", None, 0
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                if line == b"data: [DONE]\n":
                    return text, reason
                if abort_after is not None and events >= abort_after:
                    return None
                events += 1
                choice = json.loads(line[6:])["choices"][0]
                text += choice["text"]
                reason = choice["finish_reason"] or reason
            raise AssertionError("the stream ended early")
        finally:
            connection.close()

    def test_streams_with_aborts(self):
        bodies = self.bodies()
        lone = [self.stream(b) for b in bodies]
        self.server.idle()
        errors, counts, lock, health = [], {"done": 0, "aborted": 0}, threading.Lock(), []
        end = time.time() + SECONDS
        memory = []

        def worker(seed):
            rng = random.Random(seed)
            while time.time() < end and not errors:
                i = rng.randrange(len(bodies))
                abort = rng.randrange(0, 20) if rng.random() < 0.3 else None
                try:
                    got = self.stream(bodies[i], abort)
                    if got is not None and got != lone[i]:
                        errors.append((i, got, lone[i]))
                    with lock:
                        counts["done" if got is not None else "aborted"] += 1
                except Exception as e:  # noqa: BLE001 - every failure counts
                    errors.append(repr(e))

        def watch():
            connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
            while time.time() < end:
                begin = time.perf_counter()
                connection.request("GET", "/health")
                connection.getresponse().read()
                health.append(time.perf_counter() - begin)
                memory.append(resident_mib(self.server.process.pid))
                time.sleep(0.05)

        threads = [threading.Thread(target=worker, args=(s,)) for s in range(STREAMS)] + [threading.Thread(target=watch)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors[:3], [])
        cache = self.server.idle(120)
        self.assertEqual(cache["slots"]["working"] + cache["slots"]["reserved"] + cache["slots"]["pinned"], 0)
        self.assertGreater(counts["done"], 0)
        self.assertGreater(counts["aborted"], 0)
        health.sort()
        half = memory[len(memory) // 2 :]
        print(f"{counts} with {STREAMS} streams in {SECONDS:.0f} s; /health p50 {1e3 * health[len(health) // 2]:.1f} ms, p99 {1e3 * health[int(len(health) * 0.99)]:.1f} ms"
              f" ({len(health)} probes); resident {memory[0]:.0f} -> {half[0]:.0f} -> {memory[-1]:.0f} MiB; cached tokens hit {self.server.metric('kadence_cache_hits_total'):.0f} times")


if __name__ == "__main__":
    unittest.main()
