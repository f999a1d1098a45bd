"""The lab's report opens in a browser without a network: no script fails, every picture is drawn with
axes and marks, every case is there. Once with our cases, once with texts and numbers made to break it."""
import html.parser
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
BUILD = pathlib.Path(os.environ["FAULTLINE_BUILD_DIR"])
PICTURES = BUILD / "report"  # screenshots, to look at
DEADLINE = 180  # seconds for one page
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
VOID = {"meta", "br", "img", "input", "hr", "link"}
wrong = []


class Page(html.parser.HTMLParser):
    """The ids of a page as the browser left it, and of each figure what was drawn in it."""

    def __init__(self):
        super().__init__()
        self.ids = []
        self.figures = []
        self.open = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in VOID:
            self.open.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        classes = (attributes.get("class") or "").split()
        if tag == "figure":
            self.figures.append({"kind": classes[-1], "drawn": "data-drawn" in attributes, "drawings": []})
        elif "drawing" in classes:
            self.figures[-1]["drawings"].append({"size": (0, 0), "marks": 0, "axes": 0, "name": attributes.get("aria-label")})
        elif self.figures and self.figures[-1]["drawings"]:
            self.drawn(self.figures[-1]["drawings"][-1], tag, attributes, classes)

    def drawn(self, drawing, tag, attributes, classes):
        if tag == "svg":
            drawing["size"] = float(attributes["width"]), float(attributes["height"])
        elif tag == "g" and "role-axis" in classes:
            drawing["axes"] += 1
        elif tag == "path" and attributes.get("d") and any(
                "role-mark" in (outer.get("class") or "") for name, outer in self.open if name == "g"):
            drawing["marks"] += 1

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass


def browser():
    for name in BROWSERS:
        if shutil.which(name):
            return name
    sys.exit("no Chromium to open the report with: apt install chromium, or leave this test out with ctest -LE browser")


def in_browser(page, *arguments):
    """What the browser prints on standard output, and what the page's scripts say on its console."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={profile}", "--virtual-time-budget=10000", "--enable-logging=stderr", "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", *arguments, page.as_uri()]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   env={**os.environ, "HOME": profile}, start_new_session=True)
        try:
            output, said = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            sys.exit(f"the browser is not done with {page.name} after {DEADLINE} s")
    if process.returncode != 0:
        sys.exit(f"the browser ends with {process.returncode} on {page.name}:\n{said[-2000:]}")
    return output, [line for line in said.splitlines() if "CONSOLE" in line]


def check(page, cases):
    output, said = in_browser(page, "--window-size=1200,2000", "--dump-dom")
    wrong.extend(f"{page.name}: the page says: {line}" for line in said)
    found = Page()
    found.feed(output)
    for case in cases:
        if found.ids.count(case) != 1:
            wrong.append(f"{page.name}: case {case} is there {found.ids.count(case)} times")
    for number, figure in enumerate(found.figures):
        name = f"{page.name}: {figure['kind']} {number}"
        if not figure["drawn"] or not figure["drawings"]:
            wrong.append(f"{name} is not drawn")
        for drawing in figure["drawings"]:
            named = (drawing["name"] or "").startswith(("Lines: ", "Grid: "))
            if min(drawing["size"]) < 40 or drawing["marks"] == 0 or drawing["axes"] < 2 or not named:
                wrong.append(f"{name} lacks size, marks, axes or a name: {drawing}")
    for look, arguments in {"wide": ["--window-size=1200,6000"], "narrow": ["--window-size=500,6000"],
                            "dark": ["--window-size=1200,6000", "--blink-settings=preferredColorScheme=0"]}.items():
        in_browser(page, *arguments, f"--screenshot={PICTURES / f'{page.stem}-{look}.png'}")
    return found.figures


PICTURES.mkdir(exist_ok=True)
sample = PICTURES / "sample.html"
subprocess.run([BUILD / "bin" / "test_lab", "--gtest_filter=ReportWorker.WritesASample"], check=True,
               stdout=subprocess.DEVNULL, env={**os.environ, "REPORT_FILE": str(sample)})
kinds = [figure["kind"] for figure in check(sample, [f"sample.fault-{i}:v{v}" for i in range(0, 50, 2) for v in (0, 1)])]
if kinds.count("curve") != 50 or kinds.count("grid") != 50:
    wrong.append(f"{len(kinds)} pictures in the sample, not 50 curves and 50 grids")

ours, results = PICTURES / "lab.html", PICTURES / "lab.json"
# Whether the cases are verified is another test's business.
done = subprocess.run([BINARY, "lab", "--case-deadline", "120", "--report", ours, "--json", results],
                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
if done.returncode > 1:
    sys.exit(f"lab --report: exit {done.returncode} {done.stderr}")
rows = json.loads(results.read_text())
figures = check(ours, [row["id"] + (":" + row["variant"] if row["variant"] else "") for row in rows])
if wrong:
    sys.exit("\n".join(wrong))
print(f"{len(rows)} cases, {len(figures)} pictures; screenshots in {PICTURES}")
