"""Exponents of curves, and their plots on two logarithmic axes."""

import html
import math

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 430, 300, 64, 34, 14, 46
COLORS = {"ok": "#2166ac", "flagged": "#b2182b", "peer": "#777777"}


def upper_half(points):
    """The points in the upper half of the range of x, at least three where there are as many: there a cost shows that grows with x."""
    points = sorted(points)
    middle = math.sqrt(points[0][0] * points[-1][0])
    return max([point for point in points if point[0] >= middle], points[-3:], key=len)


def exponent(points):
    """The exponent of the power law through the upper half of the points (least squares of the logarithms), and its factor. None with
    fewer than two points."""
    if len({x for x, _ in points}) < 2:
        return None
    logs = [(math.log(x), math.log(y)) for x, y in upper_half(points)]
    mean = [sum(values) / len(logs) for values in zip(*logs)]
    over = sum((x - mean[0]) * (y - mean[1]) for x, y in logs)
    slope = over / sum((x - mean[0]) ** 2 for x, _ in logs)
    return slope, math.exp(mean[1] - slope * mean[0])


def number(value):
    """A number with a prefix of the SI."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}".rstrip()
    return f"{value:.3g}"


def axis(least, most):
    """Powers of ten around a range."""
    return [10.0**power for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most) * (1 + 1e-12)) + 1)]


def draw(title, x_title, unit, points, peer, law, is_flagged):
    """A plot of the points, of the power law `law` through the upper half of them, and of the points of a peer."""
    every = points + peer
    across, up = (axis(min(values), max(values)) for values in zip(*every))
    if len(across) == 1:
        across.append(across[0] * 10)
    if len(up) == 1:
        up.append(up[0] * 10)
    log = lambda value, ticks: (math.log10(value) - math.log10(ticks[0])) / (math.log10(ticks[-1]) - math.log10(ticks[0]))
    at_x = lambda value: LEFT + log(value, across) * (WIDTH - LEFT - RIGHT)
    at_y = lambda value: HEIGHT - BOTTOM - log(value, up) * (HEIGHT - TOP - BOTTOM)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-family="sans-serif" font-size="11">',
        f'<text x="{LEFT}" y="16" font-size="12" font-weight="bold">{html.escape(title)}</text>',
    ]
    # At most eight labels along an axis.
    for index, value in enumerate(across):
        out.append(f'<path d="M{at_x(value):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        if index % (len(across) // 8 + 1) == 0:
            out.append(f'<text x="{at_x(value):.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{number(value)}</text>')
    for index, value in enumerate(up):
        out.append(f'<path d="M{LEFT} {at_y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        if index % (len(up) // 8 + 1) == 0:
            shown = number(value) + ("" if " " in number(value) else " ") + unit
            out.append(f'<text x="{LEFT - 5}" y="{at_y(value) + 4:.1f}" text-anchor="end">{shown}</text>')
    color = COLORS["flagged" if is_flagged else "ok"]
    for values, paint in ((peer, COLORS["peer"]), (points, color)):
        if values:
            path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in sorted(values))
            out.append(f'<polyline points="{path}" fill="none" stroke="{paint}" stroke-width="1.5"/>')
            out += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{paint}"/>' for x, y in values]
    if law:
        slope, factor = law
        near, far = upper_half(points)[0][0], max(points)[0]
        ends = [min(max(factor * x**slope, up[0]), up[-1]) for x in (near, far)]
        out.append(
            f'<path d="M{at_x(near):.1f} {at_y(ends[0]):.1f}L{at_x(far):.1f} {at_y(ends[1]):.1f}" stroke="{color}" stroke-dasharray="5 4"/>'
        )
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(x_title)}</text></svg>')
    return "\n".join(out)


def page(heading, sections):
    """An HTML page: sections of a title, a paragraph of each line, and plots."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>",
        "<title>roce: costs against size</title>",
        "<style>body{font:14px sans-serif;margin:1em auto;max-width:1340px;padding:0 1em}.plots{display:flex;flex-wrap:wrap;gap:1em}"
        "figure{margin:0}figcaption{max-width:430px}.flagged{color:#b2182b;font-weight:bold}svg{max-width:100%;height:auto}</style>",
        f"<h1>Costs against size</h1><p>{html.escape(heading)}</p>",
        "<p>Both axes are logarithmic. The dashed line is the power law through the upper half of the points. Its exponent is compared with "
        "the expected one.</p>",
    ]
    for title, lines, plots in sections:
        parts.append(f"<h2>{html.escape(title)}</h2>" + "".join(f"<p>{html.escape(line)}</p>" for line in lines))
        figures = (
            f"<figure>{svg}<figcaption{' class=flagged' if is_flagged else ''}>{html.escape(text)}</figcaption></figure>"
            for svg, text, is_flagged in plots
        )
        parts.append(f"<div class='plots'>{''.join(figures)}</div>")
    return "\n".join(parts) + "\n</html>\n"
