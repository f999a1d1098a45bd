"""train, generate and bench refuse what they cannot use: exit 2, one line that says what to do, and
nothing left behind. And --resume, --fault and --print-config do what they promise."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
wrong = []


def run(*arguments, given=""):
    return subprocess.run([BINARY, *(a if isinstance(a, bytes) else str(a) for a in arguments)],
                          input=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8", errors="surrogateescape")


def refused(expected, *arguments, given=""):
    done = run(*arguments, given=given)
    line = done.stderr.strip()
    if done.returncode != 2 or "\n" in line or expected not in line:
        wrong.append(f"{' '.join(map(str, arguments))}: exit {done.returncode}: {line[-300:]}")
    for internal in ("std::", "what()", "CLI::", ".cpp:", "terminate"):
        if internal in line:
            wrong.append(f"{internal} in: {line}")


def accepted(*arguments, given=""):
    done = run(*arguments, given=given)
    if done.returncode != 0:
        wrong.append(f"{' '.join(map(str, arguments))}: exit {done.returncode}: {done.stderr[-300:]}")
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    text = folder / "text.txt"
    text.write_text("In the beginning God created the heaven and the earth. " * 100)
    (folder / "binary").write_bytes(b"ab\0cd" * 100)
    (folder / "used").mkdir()
    (folder / "used" / "notes").write_text("mine")
    out = folder / "out"
    tiny = ["train", "tiny", "--steps", 3, "--out", out, "--data", text]

    refused("did you mean 'train'?", "trian")
    refused("did you mean '--version'?", "--verison")
    refused("later version", "diagnose", out)
    refused("did you mean '--steps'?", *tiny, "--stpes", 3)
    refused("later version", *tiny, "--ranks", 2)
    refused("one argument too many", *tiny, "more")
    refused("num_key_value_heads", "train", "llama-tiny", "--out", out, "--data", text,
            "--set", "num_key_value_heads=3")
    refused("--out", "train", "tiny", "--data", text)
    refused("--resume", "train", "tiny", "--out", folder / "used", "--data", text)
    refused("num_heads", *tiny, "--set", "num_head=2")
    refused("key=value", *tiny, "--set", "lr")
    refused("auto, math or flash", *tiny, "--set", "attention=fast")
    refused("--threads", *tiny, "--threads", -1)
    refused("--checkpoint-every", *tiny, "--checkpoint-every", -1)
    refused("watch", *tiny, "--watch", "closely")
    refused("whole number", *tiny, "--steps", "99999999999999999999")
    refused("whole number", *tiny, "--checkpoint-every", "99999999999999999999")
    refused("whole number", *tiny, "--threads", "99999999999999999999")
    for flag in ("--tokens", "--top-k", "--threads", "--seed"):
        refused("whole number", "generate", out, "--prompt", "x", flag, "99999999999999999999")
    refused("whole number", "lab", "--seed", "-1")
    refused("--case-deadline", "lab", "adamw.step-counter", "--case-deadline", "nan")
    refused("--data is empty", "train", "tiny", "--out", out, "--data", "")
    refused("neither", *tiny[:-1], "/dev/zero")
    # Impossible sizes, before anything is built that would fill the memory.
    for size in ("num_layers=1000000000000", "hidden_size=1000000000", "seq_len=9223372036854775807",
                 "batch_size=9223372036854775807", "vocab_size=9223372036854775807"):
        refused("GB", *tiny, "--set", size)
    refused("GB", "bench", "tiny", "--seq", 2**63 - 1)
    refused("binary", "train", "tiny", "--steps", 3, "--out", out, "--data", folder / "binary")
    refused("one rank", *tiny, "--fault", "labels.no-shift@rank=1")
    refused("step=N", *tiny, "--fault", "labels.no-shift@soon")
    refused("from 1", *tiny, "--fault", "labels.no-shift@step=0")
    refused("after the last step", *tiny, "--fault", "labels.no-shift@step=9")
    refused("before the first step", *tiny, "--fault", "adamw.step-counter:bf16@step=2")
    refused("named twice", *tiny, "--fault", "labels.no-shift", "--fault", "labels.no-shift")
    if out.exists():
        wrong.append("a refused run left its directory")

    for asked in ("math", "flash"):
        told = accepted("train", "tiny", "--steps", 2, "--out", folder / asked, "--data", text,
                        "--dispatch-report", "--set", f"attention={asked}")
        other = "flash" if asked == "math" else "math"
        # Two layers, a step each; [batch, heads, positions, head size] of the preset.
        for part in (f"4 attention  {asked}", "[4, 2, 32, 16]", f"policy require {asked}: required",
                     f"not {other}: the policy is require {asked}"):
            if part not in told:
                wrong.append(f"--dispatch-report does not say '{part}': {told[-800:]}")

    accepted(*tiny)
    refused("lr=", "train", "--resume", out, "--lr", "0.5", "--steps", 5)
    refused("num_layers", "train", "char", "--resume", out, "--steps", 5)
    accepted("train", "--resume", out, "--steps", 5, "--out", folder / "branch")
    accepted("train", "tiny", "--resume", out, "--steps", 5)
    rows = [(folder / d / "metrics.jsonl").read_text().splitlines() for d in ("out", "branch")]
    bare = [[{k: v for k, v in json.loads(line).items() if k != "ms"} for line in r] for r in rows]
    if bare[0] != bare[1] or len(bare[0]) < 5:
        wrong.append("a run resumed in place and elsewhere has other metrics")
    if "step_5" not in os.listdir(folder / "branch" / "checkpoints"):
        wrong.append("the branch has no last checkpoint")

    # A resume that has nothing left to do does not judge; one whose text is gone says so.
    verdict = (out / "verdict.json").read_text()
    accepted("train", "--resume", out, "--steps", 2)
    if (out / "verdict.json").read_text() != verdict:
        wrong.append("a resume without a step replaced the verdict")
    moved = text.rename(folder / "moved.txt")
    refused("--data", "train", "--resume", out, "--steps", 6)
    accepted("train", "--resume", out, "--steps", 6, "--data", moved, "--out", folder / "again")
    moved.rename(text)

    # Of two runs into one directory one is refused; so is a resume of a run that goes on.
    rivals = [subprocess.Popen([BINARY, "train", "tiny", "--steps", "100", "--data", str(text), "--out",
                                str(folder / "rivals")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
              for _ in range(2)]
    errors = [rival.communicate()[1] for rival in rivals]
    if sorted(rival.returncode for rival in rivals) != [0, 2]:
        wrong.append(f"two runs into one directory: {errors}")
    written = map(json.loads, (folder / "rivals" / "metrics.jsonl").read_text().splitlines())
    if [row["step"] for row in written if "loss" in row] != list(range(1, 101)):
        wrong.append("two runs wrote into one directory")
    running = subprocess.Popen([BINARY, "train", "tiny", "--data", str(text), "--out", str(folder / "goes_on"),
                                "--steps", "100000000"], stdout=subprocess.DEVNULL)
    while running.poll() is None and not (folder / "goes_on" / "metrics.jsonl").exists():
        pass
    refused("in use", "train", "--resume", folder / "goes_on", "--steps", 5)
    running.kill()
    running.wait()
    accepted("train", "--resume", folder / "goes_on", "--steps", 5)

    refused("prompt", "generate", out, "--prompt", "")
    refused("temperature", "generate", out, "--prompt", "x", "--temperature", -1)
    refused("top_k", "generate", out, "--prompt", "x", "--top-k", -1)
    refused("--tokens", "generate", out, "--prompt", "x", "--tokens", -1)
    answer = json.loads(accepted("generate", out, "--prompt", "y" * 40, "--tokens", 5, "--json", "-"))
    if answer["context"] != {"requested": 40, "used": 32, "dropped": 8}:
        wrong.append(f"context {answer['context']}")
    again = json.loads(accepted("generate", out, "--prompt", "y" * 40, "--tokens", 5, "--json", "-"))
    if answer["tokens"] != again["tokens"]:
        wrong.append("one seed gives two texts")

    # A prompt longer than the context, under each policy: what is dropped is said.
    context = {"keep-tail": (32, [[0, 8]]), "sink+tail": (32, [[4, 12]]), "keep-head": (27, [[27, 40]])}
    for policy, (used, dropped) in context.items():
        answer = json.loads(accepted("generate", out, "--prompt", "y" * 40, "--tokens", 5,
                                     "--context-policy", policy, "--json", "-"))
        if answer["context"] != {"requested": 40, "used": used, "dropped": 40 - used}:
            wrong.append(f"{policy}: {answer['context']}")
        if answer["dropped_ranges"] != dropped or len(answer["tokens"]) != 5:
            wrong.append(f"{policy}: {answer}")
    refused("40 tokens and 5 new ones", "generate", out, "--prompt", "y" * 40, "--tokens", 5,
            "--context-policy", "error")
    refused("32 tokens and 1 new ones", "generate", out, "--prompt", "y" * 32, "--tokens", 1,
            "--context-policy", "error")
    refused("context policy", "generate", out, "--prompt", "x", "--context-policy", "middle")
    refused("sinks", "generate", out, "--prompt", "x", "--context-policy", "sink+tail", "--sinks", 32)

    # Where keys are kept changes no token; standard input is the same prompt.
    ways = [["--kv-cache", "off"], ["--kv-cache", "f32"], ["--kv-pages", "on"]]
    texts = [accepted("generate", out, "--prompt", "In the ", "--tokens", 40, *way) for way in ways]
    texts.append(accepted("generate", out, "--prompt", "-", "--tokens", 40, given="In the "))
    if len(set(texts)) != 1:
        wrong.append(f"caches give several texts: {texts}")
    accepted("generate", out, "--prompt", "In", "--top-p", 0.5, "--kv-cache", "bf16", "--kv-pages", "on")
    refused("--kv-cache", "generate", out, "--prompt", "x", "--kv-cache", "f64")
    refused("--kv-pages", "generate", out, "--prompt", "x", "--kv-cache", "off", "--kv-pages", "on")
    refused("top_p", "generate", out, "--prompt", "x", "--top-p", 1.5)
    refused("prompt is empty (standard input)", "generate", out, "--prompt", "-")
    # A stray byte, an overlong form, a surrogate, half a character: what was read, and where it is wrong.
    for bad in (b"ab\x80", b"ab\xc0\xaf", b"ab\xed\xa0\x80", b"ab\xf0\x9f\x98"):
        refused(f"not UTF-8: the byte 0x{bad[2]:02x} at offset 2", "generate", out, "--prompt", bad)
        refused("standard input is not UTF-8", "generate", out, "--prompt", "-",
                given=bad.decode(errors="surrogateescape"))

    refused("32 positions", "bench", "tiny", "--decode", "--steps", 100)
    decoded = json.loads(accepted("bench", "tiny", "--decode", "--steps", 4, "--json", "-"))
    # Two layers of width 32 (12 x 32 x 32 each), and the head of 256 x 32: every weight once.
    if decoded["weight_bytes"] != 4 * (2 * 12 * 32 * 32 + 256 * 32) or decoded["efficiency"] <= 0:
        wrong.append(f"bench --decode: {decoded}")
    refused("later version", "bench", "tiny", "--dtype", "bf16")
    refused("--steps", "bench", "tiny", "--steps", 0)

    # A damaged checkpoint is named, and not trained on.
    state = next((out / "checkpoints" / "step_5").glob("*.safetensors"))
    damaged = bytearray(state.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    state.write_bytes(damaged)
    refused("step_5", "train", "--resume", out, "--steps", 6)
    refused("step_5", "generate", out, "--prompt", "x")

    # What was planted is in faults.json and nowhere else.
    faulty = folder / "faulty"
    accepted("train", "tiny", "--steps", 3, "--data", text, "--out", faulty, "--watch", "off",
             "--fault", "optim.missing-zero-grad@step=2")
    planted = json.loads((faulty / "faults.json").read_text())
    if planted != [{"fault": "optim.missing-zero-grad", "variant": "", "step": 2, "rank": 0}]:
        wrong.append(f"faults.json holds {planted}")
    for path in faulty.rglob("*"):
        if path.is_file() and path.name != "faults.json" and b"missing-zero-grad" in path.read_bytes():
            wrong.append(f"{path.name} names the fault")
    healthy = [json.loads(line) for line in rows[0]]
    found = [json.loads(line) for line in (faulty / "metrics.jsonl").read_text().splitlines()]
    if found[0]["loss"] != healthy[0]["loss"] or found[1]["grad_norm"] == healthy[1]["grad_norm"]:
        wrong.append("a fault from step 2 on does not begin at step 2")
    # What a fault needs is set and told, unless the user set it otherwise.
    needy = folder / "needy"
    told = accepted("train", "tiny", "--steps", 2, "--data", text, "--out", needy, "--fault", "softmax.overflow:naive")
    config = json.loads((needy / "config.json").read_text())
    if config["sources"]["init_std"] != "fault" or "softmax.overflow" in (needy / "config.json").read_text():
        wrong.append(f"config.json names the fault: {config['sources']}")
    if config["values"]["init_std"] != 2 or "init_std" not in told:
        wrong.append(f"a fault's needs are not met: init_std {config['values']['init_std']}")
    refused("init_std", "train", "tiny", "--steps", 2, "--data", text, "--out", folder / "contrary",
            "--fault", "softmax.overflow:naive", "--set", "init_std=0.5")
    stopped = run("train", "tiny", "--steps", 50, "--data", text, "--out", folder / "stopped",
                  "--watch", "full", "--fault", "optim.missing-zero-grad", "--stop-on-fault")
    if stopped.returncode != 1 or not (folder / "stopped" / "verdict.json").exists():
        wrong.append(f"--stop-on-fault: exit {stopped.returncode}: {stopped.stderr[-200:]}")

    # A run that diverges is no fault that we can name, and not healthy.
    diverged = folder / "diverged"
    accepted("train", "tiny", "--steps", 5, "--data", text, "--out", diverged, "--watch", "full",
             "--lr", "1e30", "--set", "warmup_steps=0")
    verdict = json.loads((diverged / "verdict.json").read_text())
    if verdict["verdict"] != "undecided" or verdict["causes"] or not verdict["unexplained"]:
        wrong.append(f"a diverged run is called {verdict['verdict']} {verdict['causes']}")

    shown = accepted("train", "tiny", "--lr", "0.25", "--print-config")
    if not any(line.split() == ["lr", "0.25", "--lr"] for line in shown.splitlines()):
        wrong.append("--print-config does not show lr and its source")

if wrong:
    sys.exit("\n".join(wrong))
print("refused, resumed, planted and shown as promised")
