"""docs/faults/measured.json: every figure that the pages show. It is written on one machine and
checked on any, so a page never depends on where it was rendered."""
import datetime
import hashlib
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import time

from pages.text import number

STEPS = 100
TRACED = 5  # losses shown of a run: at its first step and at each quarter
AVERAGED = 10  # steps at the end of a run of which the mean loss is compared
DIGITS = 6  # significant, of the numbers of a picture
NOT_FINITE = ("nan", "inf", "-inf")
BASE_STEPS = 60  # of the run of `tiny` that a generation is made from
PROMPT, TOKENS = "And God said", 16


def laid_out(value, margin=""):
    """JSON on several lines, but a list without texts on one."""
    deeper = margin + " "
    if isinstance(value, dict) and value:
        items = [f"{deeper}{json.dumps(k)}: {laid_out(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + "\n" + margin + "}"
    texts = lambda v: isinstance(v, (dict, list)) and v or isinstance(v, str) and v not in NOT_FINITE
    if isinstance(value, list) and any(map(texts, value)):
        return "[\n" + ",\n".join(deeper + laid_out(v, deeper) for v in value) + "\n" + margin + "]"
    return json.dumps(value, ensure_ascii=False)


class Measured:
    """The file; `faults` is {id: {"lab": ..., "training": ...}}."""

    def __init__(self, path):
        self.path = path
        self.faults = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def save(self):
        """A run that is stopped leaves the file whole."""
        part = self.path.with_suffix(".part")
        part.write_text(laid_out(dict(sorted(self.faults.items()))) + "\n", encoding="utf-8")
        os.replace(part, self.path)


def trained_variant(fault):
    """The variant of the page's training run: the first that can be planted in one; None without."""
    return next((form for form in fault["forms"] if form["training"]), None)


def steps_of(form):
    """A fault that needs more than the usual 200 steps of `tiny` to show gets its own number."""
    return STEPS if form["training"]["steps"] <= 200 else form["training"]["steps"]


def mark_of(what):
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def lab_mark(fault):
    """Changes with the variants of a fault and with the figures that they must show."""
    return mark_of([[form["name"], form["title"], form["detector"], form["claimed"],
                     [[e["name"], e["value"], e["bound"]] for e in form["expected"]]]
                    for form in fault["forms"]])


def training_mark(fault):
    form = trained_variant(fault)
    return form and mark_of([form["name"], form["training"]["needs"], steps_of(form)])


def generated(fault):
    """The variants that `faultline generate` can have."""
    return [form for form in fault["forms"] if form.get("generation")]


def generation_mark(fault):
    forms = generated(fault)
    return mark_of([[form["name"], form["generation"]["needs"]] for form in forms]) if forms else None


def generation_of(entry):
    """What was measured of generation, or None."""
    return entry.get("generation")


def why_stale(fault, entry):
    """Why the fault must be measured (again); "" when what there is still holds."""
    if entry is None:
        return "has not been measured"
    if entry["lab"]["of"] != lab_mark(fault):
        return "has other variants or figures than when it was measured"
    training = entry["training"]
    if training and training["of"] != training_mark(fault):
        return "has another training form than when it was measured"
    if never_trained(fault, entry):
        return "has no measured training run"
    if (generation_of(entry) or {}).get("of") != generation_mark(fault):
        return "can be planted in generation otherwise than when it was measured"
    return ""


def alike(shown, said):
    """Whether two console lines tell the same: words and whole numbers are equal, and others within 5 %
    or two of the last of six decimals, since another instruction set rounds a trained loss otherwise."""
    shown, said = shown.split(), said.split()
    return len(shown) == len(said) and all(map(alike_words, shown, said))


def alike_words(a, b):
    if a == b:
        return True
    if "." not in a or "." not in b:
        return False
    try:
        x, y = float(a), float(b)
    except ValueError:
        return False
    return abs(x - y) <= 0.05 * max(abs(x), abs(y)) + 2e-6


def differs_from_lab(fault, entry, output):
    """The first variant whose console lines are others today than on the page; "" when none is."""
    for case in entry["lab"]["cases"]:
        name = name_of(fault["id"], case["variant"])
        today_ = console_lines(output, name)
        if len(today_) != len(case["lines"]) or not all(map(alike, case["lines"], today_)):
            return name
    return ""


def never_trained(fault, entry):
    """Whether there are figures of the lab but none of a training run that could be had."""
    return entry is not None and entry["training"] is None and trained_variant(fault) is not None


# ---- Measuring.

class Failed(Exception):
    """What went wrong with the measurement of a fault, in one line."""


def today():
    return datetime.date.today().isoformat()


def drifts(fault, entry, output):
    """Whether a page made of the entry would not be true today."""
    if why_stale(fault, entry):
        return True
    try:
        return differs_from_lab(fault, entry, output) != ""
    except Failed:
        return True


class Laboratory:
    """Runs the binary."""

    def __init__(self, binary):
        self.binary = binary
        self.version = self.run("--version").stdout.split()[-1]

    def run(self, *arguments):
        return subprocess.run([self.binary, *map(str, arguments)], text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def output(self):
        """What the console says of all cases, with the seed of the pages."""
        with tempfile.TemporaryDirectory() as folder:
            answer = self.run("lab", "--seed", 1, "--report", pathlib.Path(folder) / "report.html")
        if not answer.stdout:
            raise Failed(f"faultline lab said nothing: {answer.stderr.strip()}")
        return answer.stdout

    def faults(self):
        answer = self.run("explain", "--json", "-")
        if answer.returncode:
            raise Failed(answer.stderr.strip())
        return json.loads(answer.stdout)


def name_of(id_, variant):
    return id_ + (":" + variant if variant else "")


def cut(value):
    """A number of a picture; NaN and the infinities are text."""
    return value if isinstance(value, str) else float(f"{value:.{DIGITS}g}")


def picture_of(run):
    curves, grids = run["pictures"]["curves"], run["pictures"]["grids"]
    return {"curves": [{"name": c["name"], "x": [cut(v) for v in c["x"]], "y": [cut(v) for v in c["y"]]}
                       for c in curves],
            "grids": [{**g, "values": [cut(v) for v in g["values"]]} for g in grids]}


def console_lines(output, name):
    """The lines of one case, without the seconds, which are other ones each time."""
    lines = output.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(name + "   ")), len(lines))
    last = next((i for i in range(first, len(lines)) if lines[i].startswith("  verified ")), None)
    if last is None:
        raise Failed(f"the lab does not verify {name}")
    verified = re.sub(r"^  verified +[0-9.]+ s +", "  verified   ", lines[last])
    return lines[first:last] + [verified]


def measure_lab(laboratory, fault):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "lab.json"
        said = laboratory.run("lab", fault["id"], "--seed", 1, "--json", path,
                              "--report", path.with_suffix(".html"))
        if not path.exists():
            raise Failed(said.stderr.strip() or f"faultline lab ended with {said.returncode}")
        results = json.loads(path.read_text(encoding="utf-8"))
    for result in results:
        if result["verdict"] != "verified":
            raise Failed(f"{name_of(result['id'], result['variant'])} is not verified: {result['why']}")
    drawn = lambda r: any(r["faulty"]["pictures"].values())
    main = next(filter(drawn, results), results[0])
    return {"of": lab_mark(fault), "version": laboratory.version, "date": today(),
            "cases": [{"variant": r["variant"],
                       "lines": console_lines(said.stdout, name_of(r["id"], r["variant"])),
                       "claimed": r["claimed"] and r["claimed"]["outcome"]} for r in results],
            "pictured": main["variant"],
            "metrics": {run: main[run]["metrics"] for run in ("healthy", "faulty")},
            "healthy": picture_of(main["healthy"]), "faulty": picture_of(main["faulty"])}


def train(laboratory, steps, needs, fault=None):
    """One run of `char`: some of its losses, and what the detectors said."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run"
        own = ["--fault", fault, "--watch", "full"] if fault else ["--watch", "off"]
        own += [a for key, value in sorted(needs.items()) for a in ("--set", f"{key}={value}")]
        done = laboratory.run("train", "char", "--steps", steps, "--seed", 1, *own, "--out", out)
        if not (out / "metrics.jsonl").exists():
            raise Failed(f"faultline train: {done.stderr.strip()}")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        isa = json.loads((out / "config.json").read_text())["isa"]
        verdict = out / "verdict.json"
        causes = json.loads(verdict.read_text())["causes"] if verdict.exists() else []
    losses = {row["step"]: number(row["loss"]) for row in rows if "loss" in row}
    held_out = [number(row["eval_loss"]) for row in rows if "eval_loss" in row]
    traced = sorted({1, *(steps * i // (TRACED - 1) for i in range(1, TRACED))})
    last = [losses[s] for s in range(steps - AVERAGED + 1, steps + 1) if s in losses]
    bad = next((s for s, loss in sorted(losses.items()) if not math.isfinite(loss)), None)
    text = lambda v: round(v, 6) if math.isfinite(v) else str(v)
    return isa, {"losses": [[s, text(losses[s])] for s in traced if s in losses],
                 "mean": text(sum(last) / len(last)) if last else None,
                 "held_out": text(held_out[-1]) if held_out else None,
                 "not_finite_from": bad,
                 "ended": done.stderr.strip().splitlines()[-1] if done.returncode else None,
                 "named": [{"id": c["id"], "step": c["first"]["step"]} for c in causes[:1]]}


def healthy_before(measured, needs, steps, laboratory):
    """A healthy run of today with the same settings, which need not be done again."""
    for entry in measured.faults.values():
        training = entry["training"]
        if training and [training[k] for k in ("needs", "steps", "version", "date")] == \
                [needs, steps, laboratory.version, today()]:
            return training["isa"], training["healthy"]
    return None


def measure_training(laboratory, fault, measured):
    form = trained_variant(fault)
    if form is None:
        return None
    needs, steps = form["training"]["needs"], steps_of(form)
    isa, healthy = healthy_before(measured, needs, steps, laboratory) or train(laboratory, steps, needs)
    _, faulty = train(laboratory, steps, needs, name_of(fault["id"], form["name"]))
    return {"of": training_mark(fault), "variant": form["name"], "steps": steps, "needs": needs,
            "isa": isa, "version": laboratory.version, "date": today(),
            "healthy": healthy, "faulty": faulty}


def generate(laboratory, run, needs, fault=None):
    """One text: the tokens, and what the first detector said."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "answer.json"
        own = ["--fault", fault] if fault else []
        own += [a for flag, value in sorted(needs.items()) for a in (f"--{flag}", value)]
        done = laboratory.run("generate", run, "--prompt", PROMPT, "--tokens", TOKENS, "--seed", 1,
                              "--watch", "full", *own, "--json", path)
        if not path.exists():
            raise Failed(f"faultline generate: {done.stderr.strip()}")
        answer = json.loads(path.read_text(encoding="utf-8"))
    said = [{key: d[key] for key in ("detector", "cause", "evidence")} for d in answer["detections"]]
    return answer["tokens"], next(iter(said), None)


def measure_generation(laboratory, fault):
    """Each variant against a healthy text with the same flags, from a small run made for it."""
    forms, rows = generated(fault), []
    if not forms:
        return None
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        made = laboratory.run("train", "tiny", "--steps", BASE_STEPS, "--seed", 1, "--watch", "off", "--out", run)
        if made.returncode:
            raise Failed(f"faultline train: {made.stderr.strip()}")
        isa = json.loads((run / "config.json").read_text())["isa"]
        for form in forms:
            needs, name = form["generation"]["needs"], name_of(fault["id"], form["name"])
            healthy, false_alarm = generate(laboratory, run, needs)
            if false_alarm:
                raise Failed(f"{name}: the healthy text is not silent: {false_alarm['evidence']}")
            faulty, named = generate(laboratory, run, needs, name)
            rows.append({"variant": form["name"], "needs": needs, "same_text": healthy == faulty, "named": named})
    return {"of": generation_mark(fault), "isa": isa, "version": laboratory.version, "date": today(), "rows": rows}


def measure_lab_first(laboratory, faults, measured):
    """The lab takes seconds a fault, training a minute: every page has its lines and picture soon."""
    failures = []
    for fault in faults:
        if fault["id"] in measured.faults:
            continue
        try:
            measured.faults[fault["id"]] = {"lab": measure_lab(laboratory, fault), "training": None,
                                            "generation": None}
        except Failed as failed:
            failures.append(f"{fault['id']}: {failed}")
    measured.save()
    return failures


def measure(laboratory, faults, measured, console, ids):
    """Measures the named faults, or without names what is missing, has changed, or of which the lab
    tells otherwise today. Saves after each, so a run that is stopped can be started again. Returns
    what failed."""
    known = {fault["id"] for fault in faults}
    for id_ in [i for i in measured.faults if i not in known]:
        del measured.faults[id_]
    failures = [f"{i}: there is no such fault" for i in ids if i not in known]
    drifted = {f["id"] for f in faults if drifts(f, measured.faults.get(f["id"]), console)}
    wanted = [f for f in faults if (f["id"] in ids if ids else f["id"] in drifted)]
    failures += measure_lab_first(laboratory, wanted, measured)
    wanted = [f for f in wanted if f["id"] in measured.faults]
    for at, fault in enumerate(wanted, 1):
        begin, id_ = time.monotonic(), fault["id"]
        old = measured.faults.get(id_, {"lab": {"of": None}, "training": None,
                                            "generation": None})
        again = bool(ids) or not why_stale(fault, measured.faults.get(id_))
        try:
            lab = old["lab"]
            if again or lab["of"] != lab_mark(fault):
                lab = measure_lab(laboratory, fault)
            training = old["training"]
            if again or (training and training["of"]) != training_mark(fault):
                training = measure_training(laboratory, fault, measured)
            generation = generation_of(old)
            if again or (generation or {}).get("of") != generation_mark(fault):
                generation = measure_generation(laboratory, fault)
        except Failed as failed:
            failures.append(f"{id_}: {failed}")
            continue
        finally:
            print(f"docs: {at} of {len(wanted)}: {id_}, {time.monotonic() - begin:.0f} s", flush=True)
        measured.faults[id_] = {"lab": lab, "training": training, "generation": generation}
        measured.save()
    measured.save()
    return failures
