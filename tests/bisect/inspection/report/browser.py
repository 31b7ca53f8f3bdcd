"""A headless Chromium, driven over a pipe by the DevTools protocol: opens pages, evaluates, presses keys, takes pictures."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        to_us, self.write = os.pipe()  # the browser reads file descriptor 3 and writes 4
        self.read, from_us = os.pipe()
        command = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.folder}",
            "about:blank",
        ]
        shell = f"exec 3<&{to_us} 4>&{from_us}; exec " + " ".join(f"'{word}'" for word in command)
        self.process = subprocess.Popen(
            ["bash", "-c", shell], pass_fds=(to_us, from_us), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_us)
        os.close(from_us)
        self.last, self.rest, self.events = 0, b"", []

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write)
        os.close(self.read)
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self):
        while b"\0" not in self.rest:
            piece = os.read(self.read, 1 << 20)
            if not piece:
                raise RuntimeError("the browser ended")
            self.rest += piece
        first, _, self.rest = self.rest.partition(b"\0")
        return json.loads(first)

    def call(self, method, session=None, **params):
        self.last += 1
        message = dict(id=self.last, method=method, params=params, **({"sessionId": session} if session else {}))
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path, **how):
        return Page(self, path, **how)


class Page:
    """`requests`: what it asked for beside itself; `complaints`: errors and warnings on its console, refusals of its policy among them."""

    def __init__(self, browser, path, dark=False, width=1200, height=900, wait=True):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.url = f"file://{path}"
        self.call("Page.navigate", url=self.url)
        if wait:
            self.until("document.documentElement?.dataset.ready === 'yes'")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"not within {seconds} s: {condition}"
            time.sleep(0.02)

    def texts(self, selector):
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.textContent)")

    def text(self):
        return self.evaluate("document.body.innerText")

    def press(self, key, **more):
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowRight": 39, "ArrowDown": 40, "End": 35}
        text = {"Enter": "\r", " ": " "}.get(key)
        common = dict(key=key, code="Space" if key == " " else key, windowsVirtualKeyCode=codes[key], **more)
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def mine(self, method):
        self.call("Runtime.evaluate", expression="0")
        return [e["params"] for e in self.browser.events if e.get("sessionId") == self.session and e.get("method") == method]

    @property
    def requests(self):
        return [p["request"]["url"] for p in self.mine("Network.requestWillBeSent") if p["request"]["url"] not in (self.url, "about:blank")]

    @property
    def complaints(self):
        said = [p["entry"]["text"] for p in self.mine("Log.entryAdded") if p["entry"]["level"] in ("error", "warning")]
        said += [str(p["exceptionDetails"]) for p in self.mine("Runtime.exceptionThrown")]
        return said + [str(p["args"]) for p in self.mine("Runtime.consoleAPICalled") if p["type"] in ("error", "warning", "assert")]

    def picture(self, path, whole=True):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(data["data"]))

    def printed(self, path):
        data = self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(data["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
