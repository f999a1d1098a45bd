"""The table of a comparison: a row for each thing, and how many of them failed."""


class Table:
    """What was compared, how far apart it was, and whether that is near enough."""

    def __init__(self):
        self.failed = 0
        print(f"{'compared':58} {'difference':>12} {'bound':>9}")

    def row(self, what, difference, bound):
        good = difference <= bound  # false for NaN
        self.failed += not good
        print(f"{what:58} {difference:12.2g} {bound:9.2g}{'' if good else '  FAILED'}", flush=True)

    def equal(self, what, ours, theirs):
        where = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
        if where is None and len(ours) != len(theirs):
            where = min(len(ours), len(theirs))
        self.failed += where is not None
        verdict = f"{len(theirs)} equal" if where is None else f"FAILED: parts at {where}"
        print(f"{what:58} {verdict:>22}", flush=True)

    def none(self, what, found):
        self.failed += bool(found)
        print(f"{what:58} {('FAILED: ' + found[0]) if found else 'none':>22}", flush=True)
