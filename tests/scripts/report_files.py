"""Where the lab's report goes: to build/lab/, or to --report, whole whoever
else writes it; and what becomes of the results where it cannot be written."""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
CASE = "adamw.step-counter:bf16"
wrong = []


def lab(*arguments, folder, **options):
    return subprocess.run([BINARY, "lab", *map(str, arguments)], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def expect(condition, what):
    if not condition:
        wrong.append(what)


def is_whole(report):
    text = report.read_text()
    return text.startswith("<!doctype html>") and text.endswith("</html>\n") and CASE in text


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    done = lab(CASE, folder=folder)
    expect(done.stdout.rstrip().endswith("build/lab/report.html"), f"the report is not named at the end: {done.stdout}")
    expect(is_whole(folder / "build/lab/report.html"), "the usual report is not whole")
    done = lab(CASE, "--report", "new/folder/own.html", "--json", "-", folder=folder)
    expect(is_whole(folder / "new/folder/own.html"), "the report of --report is not whole")
    expect(len(json.loads(done.stdout)) == 1, "--json - and --report do not go together")

    # What was found is not lost with the report.
    for place in ["/proc/nothing/report.html", folder / "build/lab/report.html/under_a_file.html"]:
        result = folder / "result.json"
        done = lab(CASE, "--report", place, "--json", result, folder=folder)
        one_line = len(done.stderr.splitlines()) == 1 and str(place) in done.stderr
        expect(done.returncode == 2 and one_line, f"--report {place}: exit {done.returncode} {done.stderr!r}")
        expect("verified" in done.stdout, f"--report {place}: the console says {done.stdout!r}")
        expect(result.exists() and json.loads(result.read_text())[0]["verdict"] == "verified", f"--report {place}: no JSON")
        result.unlink(missing_ok=True)
    # A file system that takes no more than 64 KiB of a file.
    # Python ignores the signal that would end the program, and the program inherits that.
    done = lab(CASE, "--report", "full.html", folder=folder, restore_signals=False,
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
    expect(done.returncode == 2 and "full.html" in done.stderr, f"no space: exit {done.returncode} {done.stderr!r}")
    expect("verified" in done.stdout, f"no space: the console says {done.stdout!r}")

    for arguments, named in [(["--list", "--report", "a.html"], "--list"), (["--report", "-"], "--json"),
                             (["--report", "a", "--json", "a"], "--json"), (["--report", folder], "folder")]:
        done = lab(CASE, *arguments, folder=folder)
        one_line = len(done.stderr.splitlines()) == 1 and named in done.stderr
        expect(done.returncode == 2 and one_line, f"{arguments}: exit {done.returncode} {done.stderr!r}")

    # Runs that write the same file one over the other leave a whole one, and nothing beside it.
    runs = [subprocess.Popen([BINARY, "lab", CASE, "--report", "shared/one.html"], cwd=folder,
                             stdout=subprocess.DEVNULL) for _ in range(4)]
    expect([run.wait() for run in runs] == [0] * 4, "runs that share a report fail")
    expect(is_whole(folder / "shared/one.html"), "runs that share a report tear it")
    left = [name for name in files(folder) if "partial" in name or name == "full.html"]
    expect(not left, f"left behind: {left}")
if wrong:
    sys.exit("\n".join(wrong))
print("the report goes where it should")
