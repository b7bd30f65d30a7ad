"""Runs the examples of docs/serving.md and of README.md's section on serving, and looks that docs/serving.md leaves out no flag, metric or
error code.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import serve
from cli import BINARY, ROOT, run

serve.with_client()


def blocks(name, info):
    """(language, text) of fenced blocks whose language and further words match."""
    return re.findall(rf"^```(sh|python){info}\n(.*?)^```$", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)


class Docs(unittest.TestCase):
    def run_blocks(self, found):
        script = "set -euo pipefail\nset -m\ntrap 'kill %1 2>/dev/null || true' EXIT\n"
        for language, block in found:
            script += "echo; echo '== block'\n"
            script += block if language == "sh" else f"'{sys.executable}' - <<'END_OF_EXAMPLE'\n{block}END_OF_EXAMPLE\n"
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(ROOT / "models", pathlib.Path(folder) / "models")
            env = {**os.environ, "PATH": f"{pathlib.Path(BINARY).resolve().parent}:{os.environ['PATH']}"}
            done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
        out = done.stdout
        self.assertEqual(done.returncode, 0, out[-3000:] + done.stderr[-3000:])
        self.assertEqual(out.count("== block"), len(found))
        self.assertNotIn('"error":{', out)
        return out.split("== block\n")[1:]

    def test_serving(self):
        found = blocks("docs/serving.md", "")
        self.assertGreater(len(found), 6)
        parts = self.run_blocks(found)
        out = "".join(parts)
        self.assertRegex(out, r"cached: (64|128) of \d+")
        self.assertIn('kadence_cache_misses_total{reason="too_short"}', out)
        self.assertIn('"stayed":{"pages":0,"states":0}', out)
        (answer,) = (json.loads(p) for (_, block), p in zip(found, parts) if "json_object" in block)
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(choice["message"]["content"]), dict)

    def test_readme(self):
        found = blocks("README.md", " serve")
        self.assertEqual([language for language, _ in found], ["sh", "python"])
        parts = self.run_blocks(found)
        self.assertEqual(json.loads(parts[0])["object"], "text_completion")
        self.assertGreater(len(parts[1].strip()), 10)

    def test_readme_tools(self):
        ((_, block),) = blocks("README.md", " tools")
        server = serve.Testbed("tools")
        self.addCleanup(server.kill)
        self.assertEqual(block.count("http://127.0.0.1:8321/"), 1)
        done = subprocess.run([sys.executable, "-"], input=block.replace("http://127.0.0.1:8321/", server.url + "/"), capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(done.stdout, 'look_up {"text":"zebra"}\nIt says: a striped horse\n', done.stderr)

    def test_nothing_is_left_out(self):
        text = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", run("serve", "--help").stdout)) - {"--help"}
        self.assertGreater(len(flags), 30)
        self.assertEqual({f for f in flags if f"`{f}`" not in text}, set())
        server = serve.Testbed("noop")
        self.addCleanup(server.kill)
        metrics = set(re.findall(r"^# TYPE (\S+)", server.request("GET", "/metrics")[2].decode(), re.M))
        self.assertGreater(len(metrics), 30)
        self.assertEqual({m for m in metrics if not re.search(rf"`{m}[`{{]", text)}, set())
        sources = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "server").glob("*.cc") if not p.name.endswith("_test.cc"))
        codes = set(re.findall(r'"([a-z_]+_(?:value|parameter|json|exceeded|key|allowed|found|full|down|error|failed))"', sources)) - {"server_error", "rate_limit_error", "invalid_request_error", "guided_json"}
        self.assertGreater(len(codes), 12)
        self.assertEqual({c for c in codes if f"`{c}`" not in text}, set())


if __name__ == "__main__":
    unittest.main()
