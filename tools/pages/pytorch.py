"""lab/pytorch/ID.py: the smallest PyTorch code of a fault, and behind it what it prints; or, after
"# none:", why there can be none."""
import math
import re

from pages.source import Mistake, file_of
from pages.text import prose

MOST_LINES = 20
MOST_COLUMNS = 100
PRINTS, MENDED, NONE = "# prints:", "# mended:", "# none:"
NUMBER = re.compile(r"(?<![\w.])-?(?:\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|inf|nan)(?![\w]|\.\d)", re.I)


def file(id_):
    return f"lab/pytorch/{file_of(id_)}.py"


def left_over(root, ids):
    """Files of faults that there are not."""
    known = {file(id_) for id_ in ids}
    return sorted(str(f.relative_to(root)) for f in (root / "lab/pytorch").glob("*.py")
                  if str(f.relative_to(root)) not in known)


def section(root, id_):
    """The Markdown below the section's heading; None where the fault has no such file."""
    path = file(id_)
    if not (root / path).exists():
        return None
    text = (root / path).read_text(encoding="utf-8")
    if text.startswith(NONE):
        return prose(reason(text, path))
    code, printed, mended = parts(text, path)
    said = [f"```python\n{code}\n```", "It prints, right figures before wrong ones:", f"```text\n{printed}\n```"]
    said += [prose(mended)] if mended else []
    said += [f"From [{path}](../../{path}); `./x interop` runs this block with the current PyTorch."]
    return "\n\n".join(said)


def reason(text, path):
    """Why nothing runs, from a file that holds nothing else."""
    lines = text.rstrip("\n").split("\n")
    if any(not line.startswith("# ") for line in lines):
        raise Mistake(f"{path}: behind '{NONE}' there must be comments only")
    return " ".join([lines[0][len(NONE):], *(line[2:] for line in lines[1:])]).strip()


def parts(text, path):
    """(the code, the lines that it prints, in which release it was mended or nothing)."""
    lines = text.rstrip("\n").split("\n")
    if lines.count(PRINTS) != 1:
        raise Mistake(f"{path} has {lines.count(PRINTS)} lines '{PRINTS}'; expected one, and behind "
                      "it each line that the code prints, as a comment")
    at = lines.index(PRINTS)
    behind = lines[at + 1:]
    mended = [line for line in behind if line.startswith(MENDED)]
    printed = behind[:behind.index(mended[0])] if mended else behind
    rest = behind[len(printed):]
    if not printed or any(not re.match(r"# \S", line) for line in behind):
        raise Mistake(f"{path}: behind '{PRINTS}' there must be at least one line, and each must begin with '# '")
    code = "\n".join(lines[:at]).strip("\n")
    check(code, path)
    sentence = " ".join([rest[0][len(MENDED):], *(line[2:] for line in rest[1:])]) if rest else ""
    return code, "\n".join(line[2:] for line in printed), sentence.strip()


def check(code, path):
    lines = code.split("\n")
    if not code.strip():
        raise Mistake(f"{path} has no code before '{PRINTS}'")
    if len(lines) > MOST_LINES:
        raise Mistake(f"{path} has {len(lines)} lines of code; at most {MOST_LINES}")
    if long := [n for n, line in enumerate(lines, 1) if len(line) > MOST_COLUMNS]:
        raise Mistake(f"{path}: line {long[0]} is longer than {MOST_COLUMNS} columns")


def check_figures(root, id_, page):
    """What the code prints are figures of the page, in as many digits as are printed."""
    path = file(id_)
    if not (root / path).exists() or (root / path).read_text(encoding="utf-8").startswith(NONE):
        return
    known = [float(n.replace(",", "")) for n in NUMBER.findall(page)]
    _, printed, _ = parts((root / path).read_text(encoding="utf-8"), path)
    for figure in NUMBER.findall(printed):
        if not any(agrees(figure, value) for value in known):
            raise Mistake(f"{path} prints {figure}, which is no figure of its page")


def agrees(figure, value):
    shown = float(figure.replace(",", ""))
    if math.isnan(shown) or not math.isfinite(value):
        return shown == value or math.isnan(shown) and math.isnan(value)
    decimals = len(figure.partition(".")[2])
    return abs(shown - value) <= 0.5000001 * 10.0**-decimals if decimals else shown == value
