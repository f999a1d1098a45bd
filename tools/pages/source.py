"""The file of a case, and the region of it that its page shows."""
import re

BEGIN, END = "// page: begin", "// page: end"
MOST_LINES = 20


class Mistake(Exception):
    """What is wrong with a case, in one line."""


def file_of(name):
    """"adamw.step-counter" as the stem of a file."""
    return re.sub(r"[.-]", "_", name)


def case_file(id_):
    return f"lab/cases/{file_of(id_)}.cpp"


def detector_file(name):
    return f"diagnose/detectors/{file_of(name)}.cpp"


def region(root, id_):
    """The lines between the two marks, moved to the left margin."""
    path = case_file(id_)
    if not (root / path).exists():
        raise Mistake(f"there is no {path}, in which its code should be")
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    marks = [i for i, line in enumerate(lines) if line.strip() in (BEGIN, END)]
    if [lines[i].strip() for i in marks] != [BEGIN, END]:
        raise Mistake(f"{path} has {len(marks)} marks; expected one line '{BEGIN}' before the "
                      f"smallest code that shows the fault and one line '{END}' behind it")
    code = lines[marks[0] + 1:marks[1]]
    if not any(line.strip() for line in code):
        raise Mistake(f"{path}: there is no code between '{BEGIN}' and '{END}'")
    if len(code) > MOST_LINES:
        raise Mistake(f"{path}: {len(code)} lines between the marks of the page; at most {MOST_LINES}")
    margin = min(len(line) - len(line.lstrip()) for line in code if line.strip())
    return "\n".join(line[margin:] for line in code)
