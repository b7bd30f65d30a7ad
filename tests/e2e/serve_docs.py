"""Runs every sh and python block of docs/serving.md, in order, in one shell."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import serve
from cli import BINARY, ROOT

serve.with_client()


class Docs(unittest.TestCase):
    def test_examples(self):
        text = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", text, re.M | re.S)
        self.assertGreater(len(blocks), 5)
        script = "set -euo pipefail\nset -m\ntrap 'kill %1 2>/dev/null || true' EXIT\n"
        for language, block in blocks:
            script += "echo; echo '== block'\n"
            script += block if language == "sh" else f"'{sys.executable}' - <<'END_OF_EXAMPLE'\n{block}END_OF_EXAMPLE\n"
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(ROOT / "models", pathlib.Path(folder) / "models")
            env = {**os.environ, "PATH": f"{pathlib.Path(BINARY).resolve().parent}:{os.environ['PATH']}"}
            done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
        out = done.stdout
        self.assertEqual(done.returncode, 0, out[-3000:] + done.stderr[-3000:])
        self.assertEqual(out.count("== block"), len(blocks))
        self.assertNotIn('"error":{', out)
        self.assertRegex(out, r"cached: (64|128) of \d+")
        self.assertIn('kadence_cache_misses_total{reason="too_short"}', out)
        self.assertIn('"stayed":{"pages":0,"states":0}', out)


if __name__ == "__main__":
    unittest.main()
