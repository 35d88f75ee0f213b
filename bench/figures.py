"""A figure: one measurement divided by another that ran next to it, or one measurement alone, and what is to be reached."""

import enum
import statistics
from dataclasses import dataclass, field

UNITS = {"Gb/s": 1e9, "Mb/s": 1e6, "million/s": 1e6, "thousand/s": 1e3, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "bytes": 1, "%": 0.01}


class Verdict(enum.Enum):
    AIM = "aim reached"
    GOAL = "goal reached"
    MISSED = "missed"
    NONE = ""


@dataclass
class Figure:
    """`over` divided by `under`, or `over` in its unit where there is no `under`: at least the goal, or at most, where less is
    better. `samples` has a pair of values for each cycle in which both were measured, and `failures` the reasons of the others."""

    name: str
    over: str
    under: str | None = None
    goal: float | None = None
    aim: float | None = None
    is_cost: bool = False
    samples: list = field(default_factory=list)
    failures: list = field(default_factory=list)

    def add(self, values, reasons):
        """Takes the values of one cycle, by name."""
        absent = [name for name in (self.over, self.under) if name is not None and name not in values]
        if absent:
            self.failures.append(reasons.get(absent[0], f"no value of {absent[0]}"))
        else:
            self.samples.append((values[self.over], values.get(self.under)))

    def results(self, units):
        scale = UNITS[units[self.over]]
        return [over / scale if self.under is None else over / under for over, under in self.samples]

    def verdict(self, value):
        if self.goal is None:
            return Verdict.NONE
        reaches = (lambda bound: value <= bound) if self.is_cost else (lambda bound: value >= bound)
        return Verdict.AIM if reaches(self.aim) else Verdict.GOAL if reaches(self.goal) else Verdict.MISSED

    def row(self, units):
        """The cells of its row in the table."""
        digits = 1 if self.under is None and units[self.over] != "%" else 2
        goal = "" if self.goal is None else f"{'≤' if self.is_cost else '≥'} {self.goal:.{digits}f}"
        aim = "" if self.aim is None else f"{self.aim:.{digits}f}"
        if not self.samples:
            return [self.name, "", "", goal, aim, f"not measured: {self.failures[0] if self.failures else 'left out'}", ""]
        found = self.results(units)
        low, median, high = quartiles(found)
        verdict = self.verdict(median).value
        if self.failures:
            verdict += f" ({len(self.failures)} of {len(self.failures) + len(found)} failed: {self.failures[0]})"
        spread = f"{low:.{digits}f} to {high:.{digits}f}"
        return [self.name, f"{median:.{digits}f}", spread, goal, aim, verdict, self._sides(units)]

    def _sides(self, units):
        """The median of each side with its unit."""
        if self.under is None:
            return units[self.over]
        unit = units[self.over]
        sides = [statistics.median(side) / UNITS[unit] for side in zip(*self.samples)]
        return f"{sides[0]:.3g} of {sides[1]:.3g} {unit}"

    def document(self, units):
        found = self.results(units)
        low, median, high = quartiles(found) if found else (None, None, None)
        return {
            "name": self.name, "unit": units[self.over], "goal": self.goal, "aim": self.aim, "less_is_better": self.is_cost,
            "over": self.over, "under": self.under, "samples": self.samples, "results": found, "failures": self.failures,
            "quartile_1": low, "median": median, "quartile_3": high,
            "verdict": self.verdict(median).value if found else "not measured",
        }


def quartiles(values):
    if len(values) == 1:
        return values * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def at_least(name, over, under=None, goal=None, aim=None):
    return Figure(name, over, under, goal, aim)


def at_most(name, over, under=None, goal=None, aim=None):
    return Figure(name, over, under, goal, aim, is_cost=True)


HEADINGS = ["figure", "median", "quartiles", "goal", "aim", "verdict", "medians of both sides"]


def print_table(named):
    """Prints figures, each with the units of its values."""
    rows = [HEADINGS] + [figure.row(units) for figure, units in named]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:5], widths[1:])]
        print("  ".join([*cells, f"{row[5]:12}", row[6]]).rstrip())
