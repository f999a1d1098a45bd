"""Plain text of a case as Markdown."""
import re
import textwrap

WIDTH = 100


def escaped(text):
    """The text so that Markdown shows it as it is."""
    text = re.sub(r"([\\*<~`])", r"\\\1", text)
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
    return re.sub(r"(\])(?=[(\[])", r"\1\\", text)


def lines_of(markdown, first="", rest=""):
    """One paragraph in lines that read well; no line begins as a list or a heading would."""
    lines = textwrap.wrap(" ".join(markdown.split()), WIDTH, initial_indent=first,
                          subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    begins_block = re.compile(rf"^({re.escape(rest)})([-+#>=]|\d+(?=[.)]))")
    for i, line in enumerate(lines):
        if i or not first:
            line = begins_block.sub(lambda m: m[1] + (m[2] + "\\" if m[2].isdigit() else "\\" + m[2]),
                                    line)
        lines[i] = line
    return "\n".join(lines)


def prose(text):
    """Paragraphs, from plain text in which an empty line parts them."""
    return "\n\n".join(lines_of(escaped(p)) for p in re.split(r"\n\s*\n", text.strip()))


def linked(text):
    """The same for a source: its addresses can be followed."""
    parts = re.split(r"(https?://[^\s<>]*[^\s<>.,;:)])", text)
    return "".join(f"<{p}>" if i % 2 else escaped(p) for i, p in enumerate(parts))


def item(markdown):
    return lines_of(markdown, "- ", "  ")


def number(value):
    """A number of our JSON, in which NaN and the infinities are text."""
    return float(value)


def shown(value, digits=4):
    return f"{number(value):.{digits}f}"
