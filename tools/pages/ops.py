"""docs/reference/ops.md, from core/ops.def and the comments of kernels/elementwise.h."""
import re

COLUMNS = ["op", "inputs", "outputs", "differentiable", "saved", "autocast", "kernels", "what"]


def split_columns(text):
    """Splits at commas that are not inside parentheses."""
    columns, depth, current = [], 0, ""
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            columns.append(current.strip())
            current = ""
        else:
            current += c
    return columns + [current.strip()]


def indices(column):
    inside = re.search(r"\((.*)\)", column).group(1)
    return inside or "-"


def rows_of(source):
    """(macro, columns, the comment right above) of every row, in order."""
    comment = []
    whole = re.sub(r",\n +", ", ", source)  # a row may go on in the next line
    for line in whole.splitlines():
        row = re.match(r"(FAULTLINE_\w+)\((.*)\)\s*$", line)
        if row:
            yield row.group(1), split_columns(row.group(2)), " ".join(comment)
            comment = []
        elif line.startswith("//"):
            comment.append(line[2:].strip())
        else:
            comment = []


def formulas(root):
    """The comment above each functor of kernels/elementwise.h, by name."""
    source = (root / "kernels/elementwise.h").read_text(encoding="utf-8")
    found = re.findall(r"((?:^ *// .*\n)+) *struct (\w+) \{", source, re.M)
    return {name: " ".join(l.strip()[3:] for l in text.splitlines()) for text, name in found}


def cells(macro, columns, comment, formula):
    if macro == "FAULTLINE_UNARY":
        name, autocast = columns
        return [name, "1", "1", "0", "in 0, out 0", autocast, "fast", formula.get(name, comment)]
    name, inputs, outputs, differentiable, saved_in, saved_out, autocast, _, kernels = columns
    saved = ", ".join(f"{what} {indices(c)}" for what, c in (("in", saved_in), ("out", saved_out))
                      if indices(c) != "-")
    return [name, inputs, outputs, indices(differentiable), saved or "-", autocast, kernels, comment]


def ops_page(root):
    source = (root / "core/ops.def").read_text(encoding="utf-8")
    ops, launches, formula = [], [], formulas(root)
    for macro, columns, comment in rows_of(source):
        if macro == "FAULTLINE_KERNEL":
            launches.append((columns[0], comment))
        else:
            ops.append(cells(macro, columns, comment, formula))
    lines = ["# Ops", "",
             "Written by `./x docs` from `core/ops.def`; the head of that file explains the columns.", "",
             "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    bar = lambda text: text.replace("|", "\\|")
    lines += ["| " + " | ".join([f"`{c[0]}`"] + [bar(x) for x in c[1:]]) + " |" for c in ops]
    lines += ["", "## Launches that are not ops", "", "| launch | what |", "|---|---|"]
    lines += [f"| `{name}` | {comment} |" for name, comment in launches]
    return "\n".join(lines) + "\n"
