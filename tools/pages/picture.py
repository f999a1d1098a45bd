"""The picture of a fault: its healthy and its faulty run, as an SVG of a few kilobytes. Every colour
is of middle lightness or stands on a fill of its own, so white and dark pages show it alike."""
import math
from html import escape

from pages.text import number

MOST_BYTES = 30_000
WIDTH = 720
INK, HEALTHY, FAULTY = "#7a7a7a", "#2b83ba", "#d95f02"
COLOUR = {"healthy": HEALTHY, "faulty": FAULTY}
MOST_PANELS = 3


def svg(height, alt, body):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">\n'
            f"<title>{escape(alt)}</title>\n" + "\n".join(body) + "\n</svg>\n")


def text(x, y, words, anchor="start", **style):
    extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in style.items())
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'


def figure(value):
    """A number as people write it."""
    return f"{value:.4g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


# ---- Curves.

class Scale:
    """Values to places; by powers of ten where all but the least of them span more than three."""

    def __init__(self, values, begin, end, may_be_log):
        low, high = min(values), max(values)
        self.log = may_be_log and low > 0 and high > 1e3 * sorted(values)[len(values) // 20]
        if self.log:
            low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
            every = max(1, math.ceil((high - low) / 5))
            self.ticks = [10.0**p for p in range(low, high + 1, every)]
        else:
            if 0 < low < .1 * high:
                low = 0
            if high - low <= 1e-9 * max(abs(low), abs(high)):
                room = abs(low) / 2 or 1
                low, high = low - room, high + room
            step = nice_step((high - low) / 5)
            first = math.ceil(low / step - 1e-9)
            self.ticks = [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
        self.low, self.high, self.begin, self.end = low, high, begin, end

    def __call__(self, value):
        at = math.log10(value) if self.log else value
        return round(self.begin + (at - self.low) / (self.high - self.low) * (self.end - self.begin), 1)


def nice_step(rough):
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))


def axes_of(name):
    """A curve is called after its value, or "VALUE by X" where x is not the step."""
    value, _, x = name.partition(" by ")
    return value.rstrip(","), x.removeprefix("the ") or "step"


def points_of(curve):
    return [(number(x), number(y)) for x, y in zip(curve["x"], curve["y"])]


def finite(points):
    return [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]


def path_of(points, x_scale, y_scale):
    """A line that is broken where there is no number."""
    parts, pen = [], "M"
    for x, y in points:
        if not math.isfinite(y):
            pen = "M"
            continue
        parts.append(f"{pen}{x_scale(x):g} {y_scale(y):g}")
        pen = "L"
    return "".join(parts)


def lost(points):
    """The first x at which there is no number any more, and what stands there."""
    return next(((x, y) for x, y in points if not math.isfinite(y)), None)


def curve_panel(name, runs, top, height):
    """One diagram with the curve of each run; `runs` is {"healthy": points, "faulty": points}."""
    left, right, bottom = 78, WIDTH - 20, top + height - 44
    value, x_name = axes_of(name)
    known = [p for points in runs.values() for p in finite(points)]
    body = [text(14, top + 16, value)]
    for i, run in enumerate(runs):
        at = right - 110 * (len(runs) - i)
        dash = ' stroke-dasharray="7 4"' if run == "faulty" else ""
        body += [f'<path d="M{at} {top + 12}h30" stroke="{COLOUR[run]}" stroke-width="{width(run)}"{dash}/>',
                 text(at + 38, top + 16, run, fill=COLOUR[run])]
    if not known:
        return body + [text(left, top + 60, f"{value} is not a number in any run")]
    x_scale = Scale([x for x, _ in known], left, right, may_be_log=False)
    y_scale = Scale([y for _, y in known], bottom, top + 30, may_be_log=True)
    for tick in y_scale.ticks:
        y = y_scale(tick)
        body += [f'<path d="M{left} {y:g}H{right}" stroke="{INK}" stroke-opacity=".25"/>',
                 text(left - 8, y + 4, figure(tick), "end")]
    for tick in x_scale.ticks:
        x = x_scale(tick)
        body += [f'<path d="M{x:g} {bottom}v5" stroke="{INK}"/>', text(x, bottom + 19, figure(tick), "middle")]
    body += [f'<path d="M{left} {top + 30}V{bottom}H{right}" fill="none" stroke="{INK}"/>',
             text((left + right) / 2, bottom + 38, x_name, "middle")]
    for run, points in runs.items():
        dash = ' stroke-dasharray="7 4"' if run == "faulty" else ""
        body.append(f'<path d="{path_of(points, x_scale, y_scale)}" fill="none" stroke="{COLOUR[run]}" '
                    f'stroke-width="{width(run)}" stroke-linejoin="round"{dash}/>')
        body += end_mark(run, points, x_scale, y_scale, max(x for x, _ in known))
    return body


def width(run):
    """The faulty line is dashed and lies on the wider healthy one, so both are seen where they agree."""
    return "4" if run == "healthy" else "2.2"


def where_it_ends(points, last_x):
    """(the last point before there is no number any more, what to say there); None for a whole line.
    A run may also leave out what it cannot draw, so its line ends before `last_x`."""
    known, gone = finite(points), lost(points)
    if gone:
        before = [p for p in known if p[0] < gone[0]]
        return (before[-1] if before else None), f"{gone[1]} from {figure(gone[0])} on"
    if not known:
        return None, "no number at any point"
    if known[-1][0] < last_x:
        return known[-1], f"no number after {figure(known[-1][0])}"
    return None


def end_mark(run, points, x_scale, y_scale, last_x):
    ends = where_it_ends(points, last_x)
    if ends is None:
        return []
    at, words = ends
    x = x_scale(at[0]) if at else x_scale.begin + 12
    y = y_scale(at[1]) if at else y_scale.begin - 16
    side = "end" if x > (x_scale.begin + x_scale.end) / 2 else "start"
    below = 22 if y < y_scale.end + 24 else -8 if at else 4  # away from the legend
    cross = f"M{x - 5:g} {y - 5:g}l10 10m0 -10l-10 10"
    return [f'<path d="{cross}" stroke="{COLOUR[run]}" stroke-width="2.2"/>',
            text(x + (-12 if side == "end" else 12), y + below, words, side, fill=COLOUR[run])]


def curves_by_name(measured):
    names = [c["name"] for run in ("healthy", "faulty") for c in measured[run]["curves"]]
    found = {}
    for name in dict.fromkeys(names):
        found[name] = {run: points_of(c) for run in ("healthy", "faulty")
                       for c in measured[run]["curves"] if c["name"] == name}
    return found


def course(points, last_x):
    known, ends = finite(points), where_it_ends(points, last_x)
    if not known:
        return "no number at any point"
    first, last = known[0][1], known[-1][1]
    low, high = min(y for _, y in known), max(y for _, y in known)
    words = f"from {figure(first)} to {figure(last)}"
    words += f", as low as {figure(low)}" if low < min(first, last) else ""
    words += f", as high as {figure(high)}" if high > max(first, last) else ""
    return words + (f", then {ends[1]}" if ends else "")


def curves(measured):
    named = dict(list(curves_by_name(measured).items())[:MOST_PANELS])
    height = 300 if len(named) == 1 else 236
    body, alts = [], []
    for i, (name, runs) in enumerate(named.items()):
        body += curve_panel(name, runs, i * height, height - (16 if len(named) > 1 else 0))
        value, x_name = axes_of(name)
        last_x = max((x for p in runs.values() for x, _ in finite(p)), default=0)
        alts.append(f"{value} by {x_name}: "
                    + "; ".join(f"{run} {course(p, last_x)}" for run, p in runs.items()))
    alt = ". ".join(alts) + "."
    return svg(len(named) * height, alt, body), alt


# ---- Grids.

LEVELS = 16
SMALL = 12  # cells below this size touch each other and have no edges


def ramp(share):
    """From nearly white to dark blue; a cell has its own fill on every background."""
    low, high = (238, 243, 249), (24, 78, 130)
    share = round(share * LEVELS) / LEVELS
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high))


def grid_pair(name, runs, top):
    """Healthy at the left, faulty at the right; a faulty cell that differs has an edge."""
    shape = next(iter(runs.values()))
    rows, columns = shape["rows"], shape["columns"]
    side = max(map(room, runs.values()))
    size = min((WIDTH / 2 - 10 - side) / columns, 260 / rows, 44)
    known = [v for g in runs.values() for v in map(number, g["values"]) if math.isfinite(v)]
    high = max(map(abs, known), default=0) or 1
    body, at = [text(14, top + 16, name)], {"healthy": side, "faulty": WIDTH / 2 + side}
    top += 20
    other = next((g for run, g in runs.items() if run == "healthy"), None)
    if alike(runs):
        runs = {"healthy": other}
    for run, grid in runs.items():
        left, first = at[run], top + 30
        body.append(text(left, top + 16, run, fill=COLOUR[run]) if len(runs) > 1 else
                    text(left, top + 16, "healthy and faulty"))
        body += cells(grid, left, first, size, high)
        if run == "faulty" and size >= SMALL and other and other["rows"] == rows and other["columns"] == columns:
            body += edges(grid, other, left, first, size)
        below = first + rows * size
        body += axes(grid, left, first, size)
    return body, 50 + rows * size + 48


def places(axis, count):
    """The names of rows or columns, or their numbers while there are few."""
    return axis["places"] or ([str(i) for i in range(count)] if count <= 16 else [])


def room(grid):
    """Left of the cells: for the names of rows, and the axis beside them."""
    return 42 + 6.4 * max(map(len, places(grid["row_axis"], grid["rows"])), default=0)


def axes(grid, left, top, size):
    rows, columns = grid["rows"], grid["columns"]
    below = top + rows * size
    names = places(grid["column_axis"], columns)
    # Names that are wider than their cells stand on two lines by turns.
    low = 13 if any(6.4 * len(name) > size for name in names) else 0
    body = [text(left + (c + .5) * size, below + 16 + low * (c % 2), name, "middle", font_size=11)
            for c, name in enumerate(names)]
    body += [text(left - 6, top + (r + .5) * size + 4, name, "end", font_size=11)
             for r, name in enumerate(places(grid["row_axis"], rows))]
    side, middle = left - room(grid) + 14, top + rows * size / 2
    return body + [text(left + columns * size / 2, below + 34 + low, grid["column_axis"]["name"], "middle"),
                   text(side, middle, grid["row_axis"]["name"], "middle", transform=f"rotate(-90 {side:g} {middle:g})")]


def cells(grid, left, top, size, high):
    """Cells of one colour are one path: a run of neighbours in a row is one rectangle of it."""
    paths, labels = {}, []
    rows, columns = grid["rows"], grid["columns"]
    for r in range(rows):
        c = 0
        while c < columns:
            value = number(grid["values"][r * columns + c])
            fill = ramp(abs(value) / high) if math.isfinite(value) else "#f6c9a8"
            count = 1
            while size < SMALL and c + count < columns and grid["values"][r * columns + c + count] == \
                    grid["values"][r * columns + c]:
                count += 1
            x, y = round(left + c * size, 1), round(top + r * size, 1)
            gap = 1 if size >= SMALL else 0
            w, h = round(count * size - gap, 1), round(size - gap, 1)
            paths.setdefault(fill, []).append(f"M{x:g} {y:g}h{w:g}v{h:g}h-{w:g}z")
            if size >= 30:
                dark = math.isfinite(value) and abs(value) / high > .5
                labels.append(text(x + w / 2, y + h / 2 + 4, short(value), "middle", font_size=11,
                                   fill="#fff" if dark else "#333"))
            c += count
    crisp = "" if size >= SMALL else ' shape-rendering="crispEdges"'
    return [f'<path fill="{fill}"{crisp} d="{"".join(d)}"/>' for fill, d in paths.items()] + labels


def short(value):
    if not math.isfinite(value) or value == int(value):
        return figure(value)
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 1 else figure(round(value, 2))


def differing(grid, other):
    columns = grid["columns"]
    same = lambda a, b: a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) < 1e-4
    return [(i // columns, i % columns) for i, (a, b) in enumerate(zip(grid["values"], other["values"]))
            if not same(number(a), number(b))]


def edges(grid, other, left, top, size):
    side = round(size - 1, 1)
    d = "".join(f"M{round(left + c * size, 1):g} {round(top + r * size, 1):g}h{side:g}v{side:g}h-{side:g}z"
                for r, c in differing(grid, other))
    return [f'<path fill="none" stroke="{FAULTY}" stroke-width="2" d="{d}"/>'] if d else []


def pairs(measured):
    """{name: {run: grid}} of the grids that are drawn."""
    names = dict.fromkeys(g["name"] for run in ("healthy", "faulty") for g in measured[run]["grids"])
    return {name: {run: g for run in ("healthy", "faulty") for g in measured[run]["grids"] if g["name"] == name}
            for name in list(names)[:MOST_PANELS]}


def comparable(runs):
    return len(runs) == 2 and len({(g["rows"], g["columns"]) for g in runs.values()}) == 1


def alike(runs):
    return comparable(runs) and not differing(runs["faulty"], runs["healthy"])


def changes(runs):
    if not comparable(runs):
        return ""
    if alike(runs):
        return " alike"
    return f"; {len(differing(runs['faulty'], runs['healthy']))} of {len(runs['healthy']['values'])} cells differ"


def of_axis(axis):
    return axis["name"] + (f" ({', '.join(axis['places'])})" if axis["places"] else "")


def caption(measured, of):
    """What the picture shows, in the words below it; `of` names a variant."""
    drawn = pairs(measured).values()
    if drawn and all(map(alike, drawn)):
        return f"The healthy and the faulty run{of} show the same here; they part in the figures above"
    edges = any(comparable(runs) and not alike(runs) for runs in drawn)
    return f"The healthy and the faulty run{of}" + ("; cells with an edge differ" if edges else "")


def grids(measured):
    body, alts, top = [], [], 0
    for name, runs in pairs(measured).items():
        part, height = grid_pair(name, runs, top)
        body += part
        top += height
        grid = next(iter(runs.values()))
        alts.append(f"{name}, a row for each {of_axis(grid['row_axis'])} and a column for each "
                    f"{of_axis(grid['column_axis'])}, healthy and faulty{changes(runs)}")
    alt = ". ".join(alts) + "."
    return svg(top, alt, body), alt


# ---- Figures, where a case has neither.

MOST_BARS = 6


def bars(measured):
    names = list(measured["metrics"]["faulty"])[:MOST_BARS]
    body, alts, left, room, top = [], [], 220, 380, 6
    for name in names:
        values = {run: number(measured["metrics"][run][name]) for run in ("healthy", "faulty")}
        high = max((abs(v) for v in values.values() if math.isfinite(v)), default=0) or 1
        body.append(text(left - 12, top + 24, name, "end"))
        for i, (run, value) in enumerate(values.items()):
            y = top + 4 + i * 18
            length = round(abs(value) / high * room, 1) if math.isfinite(value) else 0
            body += [f'<path d="M{left} {y}h{max(length, 1):g}v14h-{max(length, 1):g}z" fill="{COLOUR[run]}"/>',
                     text(left + length + 8, y + 12, f"{figure(value)} {run}", fill=COLOUR[run])]
        alts.append(f"{name}: healthy {figure(values['healthy'])}, faulty {figure(values['faulty'])}")
        top += 52
    alt = "; ".join(alts) + "."
    return svg(top + 4, alt, body), alt


def draw(measured):
    """(SVG, what it shows in words) of what the lab's runs recorded."""
    if any(measured[run]["grids"] for run in ("healthy", "faulty")):
        return grids(measured)
    if any(measured[run]["curves"] for run in ("healthy", "faulty")):
        return curves(measured)
    return bars(measured)
