"""docs/faults/ID.md: one fault, always in the same order, from what `faultline explain ID --json`
gives, from measured.json, from the marked region of its case file, and from lab/pytorch/."""
import math
import re

from pages import measured as m
from pages import picture as drawing
from pages import source
from pages.source import Mistake
from pages.text import escaped, item, lines_of, linked, number, prose, shown

MOST_WORDS = 150
NEEDED = ("look_alikes", "exercise", "answer", "symptom", "mechanism", "truth", "fix")


def check(fault):
    for key in NEEDED:
        if not fault[key].strip():
            raise Mistake(f"its text has no {key}")
    words = len(fault["mechanism"].split())
    if words > MOST_WORDS:
        raise Mistake(f"its mechanism has {words} words; at most {MOST_WORDS}")
    if not fault["sources"]:
        raise Mistake("it names no source")


def page(fault, entry, code, pytorch, alt, ids):
    """The page as text. `entry` is of measured.json, `pytorch` the section of that name or None,
    `alt` says what the picture shows, `ids` are those of all faults."""
    id_ = fault["id"]
    article = "" if fault["seed"] == "-" else f" · article {fault['seed']}"
    parts = [f"# {escaped(fault['title'])}",
             f"<!-- Written by `./x docs` from {source.case_file(id_)}. -->",
             f"`{id_}` · {fault['domain']}{article} · [all faults](README.md)",
             "## What you see", prose(fault["symptom"]),
             "What the lab shows, by `./x lab " + id_ + "`:", console(entry["lab"]),
             picture(fault, entry["lab"], alt),
             "## What happens", prose(fault["mechanism"]),
             "## The smallest code that shows it", f"```cpp\n{code}\n```",
             f"From [{source.case_file(id_)}](../../{source.case_file(id_)}), which is compiled and run.",
             *(["## The same in PyTorch", pytorch] if pytorch else []),
             "## Would you notice?", would_you_notice(fault, entry),
             "## Who catches it", who_catches_it(fault, ids),
             "## The fix", prose(fault["fix"]), what_is_claimed(fault, entry["lab"]),
             "## Exercise", prose(fault["exercise"]),
             f"<details>\n<summary>Answer</summary>\n\n{prose(fault['answer'])}\n\n</details>",
             "## Sources", "\n".join(item(linked(s)) for s in fault["sources"])]
    return "\n\n".join(parts) + "\n"


def console(lab):
    return "```text\n" + "\n\n".join("\n".join(case["lines"]) for case in lab["cases"]) + "\n```"


def picture(fault, lab, alt):
    of = f", variant `{lab['pictured']}`" if lab["pictured"] else ""
    image = f"![{escaped(alt).replace('[', '(').replace(']', ')')}]({fault['id']}.svg)"
    return f"{image}\n\n*{drawing.caption(lab, of)}.*"


# ---- Would you notice?

def would_you_notice(fault, entry):
    training = entry["training"]
    if training is None:
        generation = m.generation_of(entry)
        return in_a_generation(fault, generation) if generation else no_training(fault)
    steps, name = training["steps"], m.name_of(fault["id"], training["variant"])
    command = f"faultline train char --steps {steps} --fault {name} --watch full --out DIR"
    parts = [f"```text\n{command}\n```", table(training), lines_of(judgement(training) + " " + named(training))]
    if training["needs"]:
        settings = ", ".join(f"`{k}={v}`" for k, v in sorted(training["needs"].items()))
        parts.append(lines_of(f"The fault shows only with {settings}, which `--fault` sets; the healthy run has it too."))
    others = [form for form in fault["forms"] if not form["training"]]
    for reason in dict.fromkeys(form["no_training"] for form in others):
        names = ", ".join(f"`{form['name']}`" for form in others if form["no_training"] == reason)
        parts.append(lines_of(f"Not in a training run: {names} ({escaped(reason)})."))
    parts.append(f"Measured with seed 1 on {training['isa']}, version {training['version']}, {training['date']}.")
    return "\n\n".join(parts)


def no_training(fault):
    reasons = list(dict.fromkeys(form["no_training"] for form in fault["forms"]))
    why = escaped("; ".join(reasons))
    return lines_of(f"There is no training run to compare: {why}. The lab alone shows this fault.")


def in_a_generation(fault, generation):
    """The commands, and for each variant whether the text shows it and what the detectors say."""
    rows, names = generation["rows"], [m.name_of(fault["id"], r["variant"]) for r in generation["rows"]]
    commands = [f"faultline train tiny --steps {m.BASE_STEPS} --out DIR"]
    commands += [f'faultline generate DIR --prompt "{m.PROMPT}" --tokens {m.TOKENS} --watch full --fault {name}'
                 for name in names]
    same = sum(row["same_text"] for row in rows)
    if same == 0:
        judged = "**Only beside a healthy text**, which has other tokens."
    elif same == len(rows):
        judged = "**Not from this text**, which is the healthy one, token for token."
    else:
        judged = f"**Hardly.** In {same} of {len(rows)} variants the text is the healthy one, token for token."
    parts = ["```text\n" + "\n".join(commands) + "\n```",
             lines_of(f"{judged} A model that has learned more may tell more."),
             named_in_text(rows)]
    if any(row["needs"] for row in rows):
        parts.append(lines_of("`--fault` sets the flags under which a fault can show; the healthy text has them too."))
    parts.append(f"Measured with seed 1 on {generation['isa']}, version {generation['version']}, {generation['date']}.")
    return "\n\n".join(parts)


def named_in_text(rows):
    several = len(rows) > 1
    head = (["variant"] if several else []) + ["flags", "text", "what the detectors say"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        flags = ", ".join(f"`--{k} {v!r}`" if " " in v else f"`--{k} {v}`" for k, v in sorted(row["needs"].items()))
        said = row["named"]
        says = f"`{said['cause'] or said['detector']}`: {escaped(said['evidence'])}" if said else "nothing"
        lines.append(([f"`{row['variant']}`"] if several else [])
                     + [flags or "-", "the same" if row["same_text"] else "other tokens", says])
    bar = lambda text: text.replace("|", "\\|")
    return "\n".join("| " + " | ".join(map(bar, line)) + " |" for line in lines)


def table(training):
    traced = {run: dict((s, v) for s, v in training[run]["losses"]) for run in ("healthy", "faulty")}
    steps = sorted({*traced["healthy"], *traced["faulty"]})
    last = f"last {m.AVERAGED}"
    head = ["loss at step", *map(str, steps), last, "held out"]
    rows = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for run in ("healthy", "faulty"):
        values = [traced[run].get(s) for s in steps] + [training[run]["mean"], training[run]["held_out"]]
        rows.append([run] + ["-" if v is None else shown(v) for v in values])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def judgement(training):
    """What somebody would say who sees the losses, by rule."""
    healthy, faulty = training["healthy"], training["faulty"]
    if faulty["ended"]:
        return f"**Yes.** The run ends with an error: {escaped(faulty['ended'])}."
    if faulty["not_finite_from"]:
        return f"**Yes.** From step {faulty['not_finite_from']} on the loss is no number."
    change = number(faulty["mean"]) / number(healthy["mean"]) - 1
    begin = number(faulty["losses"][0][1])
    percent = share(change)
    end = f"Over the last {m.AVERAGED} steps the loss is {shown(faulty['mean'])} in place of {shown(healthy['mean'])}"
    if faulty["losses"] == healthy["losses"] and faulty["mean"] == healthy["mean"]:
        return held_out_judgement(healthy, faulty)
    if number(faulty["mean"]) > .95 * begin and number(healthy["mean"]) < .9 * begin:
        return f"**Yes.** The loss does not fall: it ends where it began, {percent} above the healthy one."
    if abs(change) < .01:
        return f"**Hardly.** {end}: they differ by {percent}."
    if change < 0:
        return f"**As good news.** {end}, {percent} lower."
    if change < .1:
        return f"**Only beside a healthy run.** {end}, {percent} higher; it falls all the same."
    return f"**If you know what to expect.** {end}, {percent} higher."


def share(change):
    """In per cent, with two digits that say something."""
    percent = abs(change) * 100
    if percent < 1:
        return f"{percent:.1g} %"
    return f"{percent:.0f} %" if 10 <= percent < 99 else f"{percent:.1f} %"


def held_out_judgement(healthy, faulty):
    if faulty["held_out"] == healthy["held_out"]:
        return "**No.** Every loss is the healthy one, to the last digit shown."
    if not math.isfinite(number(faulty["held_out"])):
        return "**At the evaluation.** The training loss is the healthy one; on held-out text it is no number."
    change = number(faulty["held_out"]) / number(healthy["held_out"]) - 1
    more = "higher" if change > 0 else "lower"
    return (f"**Not from the training loss**, which is the healthy one. On held-out text the loss is "
            f"{share(change)} {more}.")


def named(training):
    causes = training["faulty"]["named"]
    if not causes:
        return f"No detector names it in these {training['steps']} steps."
    return f"The detectors name `{causes[0]['id']}` at step {causes[0]['step']}."


# ---- Who catches it.

def look_alikes(fault, ids):
    """With a link to the page of each other fault that it speaks of."""
    others = "|".join(re.escape(i) for i in sorted(ids, key=len, reverse=True) if i != fault["id"])
    text = labelled("Look-alikes", fault["look_alikes"])
    return re.sub(rf"(?<![\w.-])({others})(?![\w-]|\.\w)", r"[`\1`](\1.md)", text) if others else text


def who_catches_it(fault, ids):
    parts = []
    for detector in fault["detectors"]:
        variants = [f"`{form['name']}`" for form in fault["forms"]
                    if form["name"] and form["detector"] == detector["name"]]
        some = len(fault["detectors"]) > 1 and variants
        link = f"[`{detector['name']}`](../../{source.detector_file(detector['name'])})"
        line = f"{link}, at watch level `{detector['level']}` and above" + (f": {', '.join(variants)}." if some else ".")
        own = next((c for c in detector["causes"] if c["id"] == fault["id"]), None)
        if own:
            line += " Refuted by: " + decapitalised(escaped(own["refuted_by"]))
        others = [f"[`{c['id']}`]({c['id']}.md)" for c in detector["causes"] if c["id"] != fault["id"]]
        if others:
            line += f" It tells apart: {', '.join(others)}."
        parts.append(item(line))
    return "\n".join(parts) + "\n\n" + look_alikes(fault, ids)


def decapitalised(text):
    """A sentence after a colon; a name or a symbol keeps its capitals."""
    return text[0].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


# ---- What is claimed.

OUTCOMES = {"works": "it works: the figures are the healthy ones, and no detector fires",
            "hides": "it hides the fault: its detector falls silent, and the figures are not the healthy ones",
            "fails": "it fails: the fault is still seen"}


def what_is_claimed(fault, lab):
    parts = []
    if fault["article_says"]:
        parts.append(labelled("What the article claims", fault["article_says"]))
    parts.append(labelled("What is true", fault["truth"]))
    measured = {case["variant"]: case["claimed"] for case in lab["cases"]}
    for form in fault["forms"]:
        if not form["claimed"]:
            continue
        on = f" on `{form['name']}`" if form["name"] else ""
        parts.append(lines_of(f"The lab tried the claimed remedy{on}, {escaped(form['claimed'])}: "
                              f"**{OUTCOMES[measured[form['name']]]}**."))
    return "\n\n".join(parts)


def labelled(label, text):
    first, *rest = text.strip().split("\n\n")
    return "\n\n".join([lines_of(f"**{label}.** {escaped(first)}"), *map(prose, rest)])


# ---- The index.

def in_training(fault):
    planted = [form["name"] or fault["id"] for form in fault["forms"] if form["training"]]
    if len(planted) == len(fault["forms"]):
        return "yes"
    if planted:
        return ", ".join(f"`{name}`" for name in planted)
    if m.generated(fault):
        return "no: in `generate`"
    return "no: " + "; ".join(dict.fromkeys(form["no_training"] for form in fault["forms"]))


def index(faults):
    lines = ["# The faults of the lab", "",
             "<!-- Written by `./x docs` from lab/cases/. -->", "",
             lines_of("One page a fault, always in the same order: what you see, a picture, what happens, "
                      "the smallest code, whether you would notice, who catches it, the fix and what is "
                      "claimed, an exercise, sources. `./x lab ID` runs a fault; `faultline train tiny "
                      "--fault ID[:VARIANT] --watch full --out DIR` plants it in a training run, and `faultline generate "
                      "DIR --prompt TEXT --fault ID[:VARIANT]` in what generates text. `article 004 3.1` on a "
                      "page is the section of the article whose claim it tests.")]
    bar = lambda text: escaped(text).replace("|", "\\|")
    for domain in dict.fromkeys(fault["domain"] for fault in faults):
        lines += ["", f"## {domain.capitalize()}", "",
                  "| fault | what goes wrong | caught by | variants | in training |", "|---|---|---|---|---|"]
        for fault in (f for f in faults if f["domain"] == domain):
            caught = ", ".join(f"`{d['name']}`" for d in fault["detectors"])
            variants = ", ".join(f"`{v}`" for v in fault["variants"] if v) or "-"
            lines.append(f"| [`{fault['id']}`]({fault['id']}.md) | {bar(fault['title'])} | {caught} | "
                         f"{variants} | {in_training(fault)} |")
    return "\n".join(lines) + "\n"
