"""Helpers of the end-to-end tests: run the binary, read its answers, make broken copies of models."""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("KADENCE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BINARY = os.environ.get("KADENCE_BINARY", str(ROOT / "build/release/kadence"))
TINY = str(ROOT / "models/kadence-tiny")
RANDOM = str(ROOT / "models/random-kimi")


def golden(model):
    with open(pathlib.Path(model) / "golden.json", encoding="utf-8") as f:
        return json.load(f)


def prompts(model):
    return {p["name"]: p for p in golden(model)["prompts"]}


def run(*arguments, stdin=None, timeout=300):
    return subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=timeout, check=False)


class CliTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)

    def ok(self, *arguments, stdin=None):
        """Runs, wants status 0, returns standard output."""
        done = run(*arguments, stdin=stdin)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}{done.stdout[-2000:]}")
        return done.stdout

    def json(self, *arguments, stdin=None):
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))

    def refused(self, *arguments, stdin=None, status=None, says=()):
        """Runs, wants a non-zero status without a signal, nothing on standard output and an error that says each of `says`."""
        done = run(*arguments, stdin=stdin)
        what = f"{arguments}: status {done.returncode}\n{done.stderr}"
        if status is None:
            self.assertIn(done.returncode, (1, 2), what)
        else:
            self.assertEqual(done.returncode, status, what)
        self.assertEqual(done.stdout, "", what)
        self.assertRegex(done.stderr, r"(?m)^kadence: error: .", what)
        for words in says:
            self.assertIn(str(words), done.stderr, what)
        return done.stderr

    def write(self, name, content):
        path = self.folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8")
        return str(path)

    def score(self, lines, *flags, model=RANDOM, status=0):
        """Scores lines (objects, or strings as they are); returns the answers."""
        text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        done = run("score", "--model", model, "--input", "-", *flags, stdin=text)
        self.assertEqual(done.returncode, status, done.stderr)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(answers), len(lines), done.stdout)
        return answers

    def copy_model(self, model=RANDOM, name="model"):
        target = self.folder / name
        shutil.copytree(model, target)
        return target


def edit_json(path, change):
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def read_safetensors(path):
    """Header (a dict) and data bytes of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_safetensors(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
