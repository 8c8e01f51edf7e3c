#!/usr/bin/python3
"""The daemon's page in a real browser (Debian's Chromium, headless): every part of it with traffic,
keys, the dark mode, ten thousand NICs, and what must not be shown. Everything runs in network
namespaces of its own.

usage: test-page.py [FOLDER] [--pictures DIR]

The folder has butterflyd and butterfly; target/debug if none is named.

`make test-page` runs it and makes the pictures of docs/page.md. Prints a line a step; the first
that fails ends it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Seconds until something has to be seen, on a busy machine.
PATIENCE = 60
PORT = 8417
TOKEN = "a-token-of-this-test-alone"
MANY = 10_000


def main():
    words = sys.argv[1:]
    pictures = None
    if "--pictures" in words:
        at = words.index("--pictures")
        pictures = words[at + 1]
        del words[at : at + 2]
    programs = os.path.abspath(words[0] if words else os.path.join(ROOT, "target/debug"))
    if os.environ.get("BUTTERFLY_OWN_NETWORK") != "1":
        os.environ["BUTTERFLY_OWN_NETWORK"] = "1"
        inside = (
            "ip link set lo up; mkdir -p /run/netns; mount -t tmpfs tmpfs /run/netns; exec \"$@\""
        )
        again = [sys.executable, os.path.abspath(__file__), programs] + (
            ["--pictures", os.path.abspath(pictures)] if pictures else []
        )
        os.execvp(
            "unshare",
            [
                "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                "sh", "-c", inside, "sh", *again,
            ],
        )
    with tempfile.TemporaryDirectory() as folder:
        Test(programs, folder, pictures).run()


class Test:
    def __init__(self, programs, folder, pictures):
        self.programs, self.folder, self.pictures = programs, folder, pictures
        self.api = f"unix:{folder}/api.sock"
        self.steps = 0

    def butterfly(self, *words, given=None):
        line = [f"{self.programs}/butterfly", "-e", self.api, *words]
        ran = subprocess.run(line, input=given, text=True, capture_output=True, timeout=PATIENCE)
        if ran.returncode:
            raise SystemExit(f"{' '.join(line)}: {ran.stderr}")
        return ran.stdout

    def step(self, what, holds=True):
        if not holds:
            self.picture("failed")
            raise SystemExit(f"FAILED: {what}\n{self.text()}")
        self.steps += 1
        print(f"ok: {what}", flush=True)

    def run(self):
        token = f"{self.folder}/token"
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(TOKEN + "\n")
        line = [f"{self.programs}/butterflyd", "-s", self.folder, "--api", self.api, "--no-syslog"]
        line += [
            "--page", f"tcp:127.0.0.1:{PORT}", "--page-token", token, "--page",
            f"unix:{self.folder}/page.sock",
        ]
        with open(f"{self.folder}/log", "w") as log:
            daemon = subprocess.Popen(line, stdout=log, stderr=log)
        try:
            self.butterfly("health", "--wait")
            self.populate()
            self.browser = self.start_browser()
            try:
                self.parts()
                self.many()
            finally:
                self.browser.quit()
        finally:
            daemon.terminate()
            daemon.wait(PATIENCE)
        print(f"test-page: {self.steps} passed, 0 failed")

    def populate(self):
        """A network in which some may talk and others may not."""
        self.butterfly("sg", "add", "web")
        self.butterfly("sg", "add", "database")
        self.butterfly("sg", "rule", "add", "web", "--ip-proto", "tcp", "--port", "443")
        self.butterfly("sg", "rule", "add", "web", "--ip-proto", "icmp")
        self.butterfly("sg", "rule", "add", "web", "--dir", "out", "--ip-proto", "-1")
        self.butterfly(
            "sg", "rule", "add", "database", "--ip-proto", "tcp", "--port", "5432", "--sg-members",
            "web",
        )
        nics = [
            ("web-1", 1, "web", "ICMP_SND_LIKE", 2),
            ("web-2", 2, "web", "ICMP_RCV_LIKE", None),
            ("web-3", 3, "web", "ICMP_SND_LIKE", 4),
            ("database-1", 4, "database", "ICMP_RCV_LIKE", None),
        ]
        for name, number, group, role, target in nics:
            words = [
                "nic", "add", "--id", name, "--vni", "42", "--ip", f"10.0.0.{number}", "--mac",
                f"02:00:00:00:00:0{number}", "--sg", group,
            ]
            words += ["--type", "bench", "--btype", role]
            if target:
                words += ["--dip", f"10.0.0.{target}", "--dmac", f"02:00:00:00:00:0{target}"]
            self.butterfly(*words)
        self.butterfly("service", "add", "192.0.2.10:443", "--server", "192.0.2.11", "192.0.2.12")

    def start_browser(self):
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for word in [
            "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1240,900",
            f"--user-data-dir={self.folder}/profile",
        ]:
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.chrome.service.Service("/usr/bin/chromedriver")
        return webdriver.Chrome(service=service, options=options)

    def text(self):
        return self.browser.find_element(By.TAG_NAME, "body").text

    def wait(self, holds, what):
        try:
            WebDriverWait(self.browser, PATIENCE, 0.2).until(lambda _: holds())
        except Exception:
            self.step(what, False)
        self.step(what)

    def shows(self, *texts, what):
        self.wait(lambda: all(text in self.text() for text in texts), what)

    def open(self, part):
        self.browser.execute_script(f"location.hash = '#/{part}'")

    def picture(self, name):
        if self.pictures:
            os.makedirs(self.pictures, exist_ok=True)
            self.browser.save_screenshot(f"{self.pictures}/{name}.png")

    def dark(self, on):
        value = "dark" if on else "light"
        self.browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": value}]},
        )

    def background(self):
        return self.browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    def parts(self):
        self.dark(False)
        self.browser.get(f"http://127.0.0.1:{PORT}/")
        self.shows("this page is for who has its token", what="without the token nothing is shown")
        # Another document: one that is left for a fragment would not be loaded again.
        self.browser.get("about:blank")
        self.browser.get(f"http://127.0.0.1:{PORT}/#{TOKEN}")
        self.shows(
            "This host",
            "Traffic",
            "no_ingress_rule",
            what="with it the host is, and why packets are dropped",
        )
        self.step("the token is not in the address any more", TOKEN not in self.browser.current_url)
        self.open("nics")
        self.shows("web-1", "database-1", "10.0.0.4", what="NICs are listed")
        self.wait(
            lambda: "Mbit/s" in self.text() or "kbit/s" in self.text() or "Gbit/s" in self.text(),
            "their rates are those of now",
        )
        field = self.browser.find_element(By.CSS_SELECTOR, "input[type=search]")
        field.send_keys("database")
        self.wait(
            lambda: "web-1" not in self.text() and "1 of 4" in self.text(),
            "a filter leaves what has the word",
        )
        time.sleep(6)
        self.step(
            "it is kept while the page is refreshed",
            "1 of 4" in self.text()
            and self.browser.switch_to.active_element.get_attribute("type") == "search",
        )
        field = self.browser.find_element(By.CSS_SELECTOR, "input[type=search]")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(Keys.DELETE)
        self.shows("4 of 4", what="without it all are back")
        self.browser.find_element(By.LINK_TEXT, "web-3").click()
        self.shows("NIC web-3", "02:00:00:00:00:03", "Connections", what="a NIC is shown")
        self.open("nic/database-1")
        self.shows("no_ingress_rule", what="and why its packets are dropped")
        self.open("networks")
        self.shows("42", "multicast", what="networks are listed")
        self.open("network/42")
        self.shows(
            "Who talks to whom",
            "Who may talk to whom",
            "tcp 5432",
            what="a network says who may talk to whom",
        )
        self.wait(
            lambda: any(
                "web-1" in row.text and "web-2" in row.text
                for row in self.browser.find_elements(By.CSS_SELECTOR, "tr")
            ),
            "and who does",
        )
        self.picture("network")
        self.open("groups")
        self.shows("web", "database", "rules never hit", what="groups are listed")
        self.open("group/web")
        self.shows(
            "tcp 443", "never", "anywhere", what="a group's rules, with those that were never hit"
        )
        self.open("flows")
        self.shows("icmp", "web-1", "10.0.0.2", what="connections are listed")
        self.open("drops")
        self.shows(
            "no_ingress_rule", "No ingress rule", what="drops are listed with what they mean"
        )
        self.open("services")
        self.shows("192.0.2.10:443 tcp", "192.0.2.11", what="services are shown with their servers")
        self.open("router")
        self.shows("Router", what="the router is shown")
        self.open("trace/web-3")
        self.shows("Would it pass?", what="there is a form for traces")
        self.fill("10.0.0.4", "443")
        self.shows(
            "It is dropped: no_ingress_rule",
            "What would let it pass",
            what="it says why a packet would be dropped, and what would let it pass",
        )
        self.picture("trace")
        self.fill("10.0.0.4", "5432")
        self.shows("It passes.", what="and that another one would pass")
        self.fill("nonsense", "5432")
        self.shows("nonsense", what="a wrong address is named")
        self.browser.find_element(By.TAG_NAME, "h1").click()
        self.browser.find_element(By.TAG_NAME, "body").send_keys("2")
        self.shows("NICs", "web-1", what="keys lead to the parts")
        self.browser.find_element(By.TAG_NAME, "body").send_keys("/")
        self.wait(
            lambda: self.browser.switch_to.active_element.get_attribute("type") == "search",
            "and to the filter",
        )
        self.open("")
        drawn = lambda: self.browser.execute_script(
            "return document.querySelector('.chart path')?.getAttribute('d').split('L').length || 0"
        )
        self.wait(
            lambda: drawn() > 4 and "bit/s" in self.text(),
            "the host again, with what passed in the last hour",
        )
        self.picture("host")
        light = self.background()
        self.dark(True)
        self.step("who likes it dark has it dark", self.background() != light)
        self.picture("dark")
        self.dark(False)
        told = [
            line["message"] for line in self.browser.get_log("browser") if line["level"] == "SEVERE"
        ]
        told = [
            line
            for line in told
            if "401" not in line and "400" not in line and "409" not in line and "404" not in line
        ]
        self.step(f"the browser complains of nothing: {told}", not told)
        page = self.browser.execute_script(
            "return performance.getEntriesByType('resource').map((one) => one.name)"
        )
        self.step(
            "nothing is taken from elsewhere",
            all(one.startswith(f"http://127.0.0.1:{PORT}/") for one in page),
        )

    def fill(self, address, port):
        for name, value in [("destination", address), ("port", port)]:
            field = self.browser.find_element(By.NAME, name)
            field.clear()
            field.send_keys(value)
        self.browser.find_element(By.CSS_SELECTOR, "form button").click()

    def many(self):
        """Ten thousand NICs more: the list is there, and can be searched."""
        config = json.loads(self.butterfly("config", "get"))
        for number in range(MANY):
            high, low = divmod(number, 250)
            config["nics"].append(
                {
                    "id": f"many-{number}",
                    "mac": f"02:01:00:00:{high:02x}:{low:02x}",
                    "vni": 43,
                    "addresses": [f"10.1.{high}.{low + 1}"],
                    "security_groups": ["web"],
                    "kind": "NIC_KIND_BENCH",
                    "bench": {"role": "ROLE_ICMP_RECEIVER"},
                }
            )
        path = f"{self.folder}/many.json"
        with open(path, "w") as file:
            json.dump(config, file)
        self.butterfly("apply", path)
        began = time.monotonic()
        self.open("nics")
        self.wait(lambda: f"of {MANY + 4}" in self.text(), f"{MANY + 4} NICs are listed")
        self.browser.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("many-9876")
        self.wait(lambda: f"1 of {MANY + 4}" in self.text(), "one of them is found")
        print(f"  ({time.monotonic() - began:.1f} s)")


main()
