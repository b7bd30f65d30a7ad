"""The page in headless Chromium, over WebDriver: a request appears, the tree grows, the keyboard walks it, light and dark.

Skipped, visibly, without chromium and chromedriver (Debian: chromium, chromium-driver). KADENCE_SCREENSHOTS=DIR keeps the screenshots.
"""
import base64
import http.client
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

import serve

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
TEXT = "The kernel keeps a list of pages. " * 20
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    def __init__(self, dark):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.process = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            if "successfully on port " in line:
                self.port = int(line.split("on port ")[1].rstrip(".\n"))
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,1400", f"--user-data-dir={self.profile.name}"]
        if dark:
            arguments.append("--force-dark-mode")
        options = {"browserName": "chrome", "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments}}
        self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": options}}, root=True)["sessionId"]

    def call(self, method, path, body=None, root=False):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path if root else f"/session/{self.session}{path}", json.dumps(body) if body is not None else None)
        value = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(value["message"])
        return value

    def run(self, script):
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def until(self, script, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            if value := self.run(script):
                return value
            time.sleep(0.1)
        raise AssertionError(f"never: {script}; the page says: {self.run('return document.body.innerText')[:800]}")

    def keys(self, text):
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": [{"type": t, "value": c} for c in text for t in ("keyDown", "keyUp")]}]})

    def screenshot(self):
        return base64.b64decode(self.call("GET", "/screenshot"))

    def close(self):
        try:
            self.call("DELETE", "", None)
        finally:
            self.process.terminate()
            self.process.wait(20)
            self.process.stdout.close()
            self.profile.cleanup()


def mean_brightness(png):
    """Mean of the first bytes of each pixel, 8-bit RGB(A), without interlacing: enough to tell light from dark."""
    width, _, _, kind = struct.unpack(">IIBB", png[16:26])
    channels, data, at = {2: 3, 6: 4}[kind], b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    raw, stride = zlib.decompress(data), width * channels
    previous, total, count = bytearray(stride), 0, 0
    for row in range(len(raw) // (stride + 1)):
        method, line = raw[row * (stride + 1)], bytearray(raw[row * (stride + 1) + 1 : (row + 1) * (stride + 1)])
        for i in range(stride):
            left = line[i - channels] if i >= channels else 0
            up, corner = previous[i], previous[i - channels] if i >= channels else 0
            if method == 1:
                line[i] = (line[i] + left) & 255
            elif method == 2:
                line[i] = (line[i] + up) & 255
            elif method == 3:
                line[i] = (line[i] + (left + up) // 2) & 255
            elif method == 4:
                p = left + up - corner
                best = min((abs(p - left), 0, left), (abs(p - up), 1, up), (abs(p - corner), 2, corner))[2]
                line[i] = (line[i] + best) & 255
        previous = line
        if row % 8 == 0:
            total += sum(line[::channels])
            count += width
    return total / count


class Page(serve.ServeTest):
    FLAGS = ("--context-length", 4096)

    def look(self, dark):
        browser = Browser(dark)
        self.addCleanup(browser.close)
        browser.call("POST", "/url", {"url": self.server.url + "/"})
        browser.until("return document.body.dataset.ready === 'yes'")
        return browser

    def test_live_view(self):
        browser = self.look(dark=False)
        rows = "return document.querySelectorAll('#recent tr').length"
        nodes = "return document.querySelectorAll('[role=treeitem]').length"
        before, asked = browser.run(nodes), browser.run(rows)
        for end in ("And so it goes on and on. " * 8, "But not for ever, as one knows. " * 8):
            self.server.post("/v1/completions", {"prompt": TEXT + end, "max_tokens": 24, "temperature": 0})
        self.server.idle()
        browser.until(rows + f" >= {asked + 2}")
        browser.until(nodes + f" > {before}")
        share = browser.run("return document.querySelector('#recent tr td:nth-child(7)').textContent")
        self.assertRegex(share, r"^[1-9]\d? %$")  # the second request had a cached prefix
        cache = self.server.get("/v1/cache")
        self.assertEqual(browser.run("return document.querySelectorAll('#tree .dot').length"), sum(n["resumable"] for n in cache["tree"]["list"]))
        # Only the keyboard from here: the tree, then the button that flushes it.
        browser.run("document.querySelector('[role=treeitem]').focus()")
        first = browser.run("return document.activeElement.dataset.node")
        browser.keys("\ue015")
        self.assertNotEqual(browser.run("return document.activeElement.dataset.node"), first)
        browser.keys("\ue013")
        self.assertEqual(browser.run("return document.activeElement.dataset.node"), first)
        if os.environ.get("KADENCE_SCREENSHOTS"):
            self.traffic()
        self.keep(browser.screenshot(), "serving-light.png", dark=False)
        browser.run("document.getElementById('flush').focus()")
        browser.keys(" ")
        browser.until(nodes + " === 0")

    def test_dark(self):
        self.server.post("/v1/completions", {"prompt": TEXT * 2, "max_tokens": 4})
        browser = self.look(dark=True)
        browser.run("return matchMedia('(prefers-color-scheme: dark)').matches") or browser.call(
            "POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}})
        browser.until("return document.querySelectorAll('[role=treeitem]').length > 0")
        if os.environ.get("KADENCE_SCREENSHOTS"):
            self.traffic()
        self.keep(browser.screenshot(), "serving-dark.png", dark=True)

    def test_contrast_and_names(self):
        browser = self.look(dark=False)
        script = """
          const names = [...document.querySelectorAll('button, input, [role=tree], [role=img], section')].filter(e => !e.hidden && !e.closest('[hidden]'));
          return names.filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim())).length"""
        self.assertEqual(browser.run(script), 0)
        overflow = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        self.assertLessEqual(overflow, 0)

    def traffic(self):
        """Something to look at: conversations that branch, for a while."""
        history = [{"role": "user", "content": "What is a kernel? " * 12}]
        for turn in range(4):
            for question in ("And a shell?", "And a pipe, a socket, a file?"):
                ask = [*history, {"role": "user", "content": question * 8}]
                answer = self.server.post("/v1/chat/completions", {"messages": ask, "max_tokens": 60, "seed": turn, "temperature": 0.5})
                time.sleep(0.7)
            history = [*ask, answer["choices"][0]["message"]]
            history[-1] = {"role": "assistant", "content": history[-1]["content"]}
        time.sleep(1.2)

    def keep(self, png, name, dark):
        brightness = mean_brightness(png)
        self.assertTrue(brightness < 90 if dark else brightness > 170, brightness)
        if folder := os.environ.get("KADENCE_SCREENSHOTS"):
            (pathlib.Path(folder) / name).write_bytes(png)


if __name__ == "__main__":
    if CHROMIUM is None or DRIVER is None:
        print("SKIPPED: no chromium or no chromedriver on PATH")
        sys.exit(77)
    unittest.main()
