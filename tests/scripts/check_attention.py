"""check-attention on a trained model, with and without a planted fault, and on answers of an attention
that is written here with lists: right, and with a mistake."""
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

BINARY = os.environ["FAULTLINE_BINARY"]
wrong = []


def run(*arguments):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def expect(condition, text):
    if not condition:
        wrong.append(text)


def verdict(expected_code, *arguments):
    code, out, err = run("check-attention", *arguments, "--json", "-")
    expect(code == expected_code, f"{arguments}: exit {code}: {err}")
    return json.loads(out) if out else {}


def refused(said, *arguments):
    code, _, err = run("check-attention", *arguments)
    expect(code == 2 and said in err and err.count("\n") == 1, f"{arguments}: exit {code}: {err}")


# ---- attention with lists --------------------------------------------------------------------------

def read_safetensors(path):
    """Name to (shape, flat list) of f32 and bool tensors."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        letter = {"F32": "f", "BOOL": "?"}[entry["dtype"]]
        width = struct.calcsize(letter)
        tensors[name] = entry["shape"], struct.unpack(f"<{(end - begin) // width}{letter}", data[begin:end])
    return tensors


def write_safetensors(path, tensors):
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        part = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def attention(probes, name, sees=lambda visible: visible, softcap=0):
    (B, H, Q, D), q = probes[name + ".q"]
    (_, G, K, _), k = probes[name + ".k"]
    v, mask = probes[name + ".v"][1], probes[name + ".mask"][1]
    y = []
    for b in range(B):
        for h in range(H):
            first = (b * G + h * G // H) * K * D
            for i in range(Q):
                at = ((b * H + h) * Q + i) * D
                keys = [j for j in range(K) if sees(mask[(b * Q + i) * K + j])]
                scores = [sum(q[at + d] * k[first + j * D + d] for d in range(D)) / math.sqrt(D) for j in keys]
                if softcap:
                    scores = [softcap * math.tanh(s / softcap) for s in scores]
                weights = [math.exp(s - max(scores)) for s in scores]
                total = sum(weights)
                y += [sum(w / total * v[first + j * D + d] for w, j in zip(weights, keys)) for d in range(D)]
    return [B, H, Q, D], y


def answers(probes, **how):
    names = [key[:-2] for key in probes if key.endswith(".q")]
    return {n: attention(probes, n, softcap=2 if n == "softcap" else 0, **how) for n in names}


with tempfile.TemporaryDirectory() as scratch:
    d = pathlib.Path(scratch)
    text = d / "text.txt"
    text.write_text("In the beginning was the word, and the word was light. " * 200)
    trained = ["--steps", 2, "--data", text]
    expect(run("train", "tiny", *trained, "--out", d / "gpt2")[0] == 0, "train tiny")
    expect(run("train", "llama-tiny", *trained, "--out", d / "llama")[0] == 0, "train llama-tiny")
    expect(run("train", d / "gpt2", *trained, "--lora", "r=4,alpha=8", "--out", d / "adapted")[0] == 0, "adapt")
    expect(run("convert", d / "llama", d / "folder")[0] == 0, "convert")

    for name, absent in {"gpt2": {"rope.angles", "rope.shift", "merge"}, "llama": {"merge"},
                         "folder": {"merge"}, "adapted": {"rope.angles", "rope.shift"}}.items():
        healthy = verdict(0, d / name)
        expect(healthy.get("verdict") == "healthy", f"{name}: {healthy.get('verdict')}")
        expect({c["id"] for c in healthy.get("checks_skipped", [])} == absent, f"{name}: {healthy.get('checks_skipped')}")
        expect(all(c["ok"] and c["difference"] <= c["bound"] for c in healthy.get("checks", [])), f"{name}: {healthy}")
    code, out, _ = run("check-attention", d / "gpt2")
    expect(code == 0 and "Nothing is wrong." in out and "causality" in out, out)

    for fault, model, check in [("attn.mask-broadcast:inverted", "gpt2", "causality"),
                                ("attn.mask-multiply:post", "llama", "parity.math"),
                                ("softmax.masked-row", "gpt2", "parity.math"),
                                ("softmax.overflow:naive", "llama", "parity.math"),
                                ("attn.packing-leak", "gpt2", "documents"),
                                ("rope.bf16", "llama", "rope.shift"),
                                ("sdpa.fallback", "gpt2", "dispatch"),
                                ("lora.scale", "adapted", "adapter.scale"),
                                ("lora.both-zero", "adapted", "adapter.zero"),
                                ("lora.misaligned", "adapted", "adapter.alignment"),
                                ("lora.merge-bf16", "adapted", "merge")]:
        found = verdict(1, d / model, "--fault", fault)
        causes = {c["id"]: c["cause"] for c in found.get("checks", []) if not c["ok"]}
        expect(found.get("verdict") == "fault" and causes.get(check) == fault, f"{fault}: {causes}")
        expect(set(causes.values()) == {fault}, f"{fault}: also {causes}")
    two = verdict(1, d / "adapted", "--fault", "attn.scale-twice", "--fault", "lora.merge-twice")
    causes = {c["id"]: c["cause"] for c in two.get("checks", []) if not c["ok"]}
    expect(causes.pop("merge", "") == "lora.merge-twice" and set(causes.values()) == {"attn.scale-twice"},
           f"two faults: {causes}")
    code, out, _ = run("check-attention", d / "gpt2", "--fault", "attn.packing-leak")
    expect(code == 1 and "FAILED" in out and "faultline explain attn.packing-leak" in out, out)

    probes_file = d / "probes.safetensors"
    code, out, err = run("check-attention", "--emit", probes_file)
    expect(code == 0 and "scaled_dot_product_attention" in out, out + err)
    probes = read_safetensors(probes_file)
    write_safetensors(d / "right.safetensors", answers(probes))
    expect(verdict(0, "--judge", d / "right.safetensors").get("verdict") == "healthy", "right answers")
    write_safetensors(d / "inverted.safetensors", answers(probes, sees=lambda visible: not visible))
    named = [m["cause"] for m in verdict(1, "--judge", d / "inverted.safetensors").get("mistakes", [])]
    expect(named == ["attn.mask-broadcast:inverted"], f"inverted answers: {named}")

    right = answers(probes)
    write_safetensors(d / "capless.safetensors", {n: y for n, y in right.items() if n != "softcap"})
    expect(verdict(0, "--judge", d / "capless.safetensors").get("verdict") == "healthy", "all but softcap")
    write_safetensors(d / "one.safetensors", {"plain": right["plain"]})
    expect(verdict(2, "--judge", d / "one.safetensors").get("verdict") == "undecided", "one answer")
    refused("no answer (causal, ", "--judge", d / "one.safetensors")
    _, out, _ = run("check-attention", "--judge", d / "one.safetensors")
    expect(f"1 of {len(right)} answered, right; {len(right) - 1} not answered." in out, out)

    refused("nowhere", d / "nowhere")
    refused("give one of", *[])
    refused("give one of", d / "gpt2", "--emit", probes_file)
    refused("--fault", "--judge", d / "right.safetensors", "--fault", "attn.packing-leak")
    refused("attn.packing-leak", d / "gpt2", "--fault", "attn.packing-leek")
    # What is asked and does not show is refused as what nobody asks.
    for fault in ["labels.no-shift", "labels.double-shift", "input.context-overflow", "loss.log-zero:log-of-softmax"]:
        refused(f"no check shows {fault} ", d / "gpt2", "--fault", fault)
    refused("--emit", d / "gpt2", "--dtype", "f99")
    refused("--dtype must be", "--emit", d / "none.safetensors", "--dtype", "f99")
    (d / "bad.safetensors").write_bytes(b"\0" * 4)
    refused("bad.safetensors", "--judge", d / "bad.safetensors")
    short = d / "short"
    expect(run("train", "tiny", "--seq", 4, *trained, "--out", short)[0] == 0, "train a short one")
    refused("positions", short)

for line in wrong:
    print(line)
sys.exit(1 if wrong else 0)
