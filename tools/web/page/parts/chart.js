// Charts of values over time, as SVG with a table behind them.

import { el, onWidth, svg, wide } from "./dom.js";
import { plainTable } from "./table.js";

const HEIGHT = 240;
const MARGIN = { top: 24, right: 24, bottom: 40, left: 72 };
// A series has a dash besides its colour, so that it can be told without colours.
const DASHES = ["none", "7 4", "2 3", "10 3 2 3", "14 4", "4 4"];
const MOST_POINTS = 1500;
const MOST_ROWS = 200;

/**
 * A chart with the given title. `show(data)` draws, as often as there is new data:
 *
 *     { x: { label, format }, y: { label, format, max }, series: [{ name, points: [[x, y], …], kind }] }
 *
 * `format(number)` returns text, `max` (optional) is the least upper end of the axis. `kind`: "line" (the
 * default), "step" (a value holds until the next point) or "bars". A `y` of null is a gap.
 * Returns `{ element, show }`.
 */
export function createChart({ title }) {
  const drawing = wide(title);
  const legend = el("ul", { class: "legend" });
  const rows = wide(`${title}: table`);
  const details = el("details", {}, el("summary", { text: `${title}: as a table` }), rows);
  const element = el("figure", { class: "chart" },
    el("figcaption", { class: "end", text: title }), legend, drawing, details);
  let data = null;
  let width = 0;
  const draw = () => {
    if (!data || width === 0) return;
    drawing.replaceChildren(picture(title, data, width));
    legend.replaceChildren(...data.series.map((series, place) => legendItem(series, place)));
    if (details.open) rows.replaceChildren(table(data));
  };
  details.addEventListener("toggle", () => {
    if (details.open && data) rows.replaceChildren(table(data));
  });
  onWidth(element, (next) => { width = next; draw(); });
  return { element, show: (next) => { data = next; draw(); } };
}

function colourOf(place) {
  return `series-${(place % DASHES.length) + 1}`;
}

function legendItem({ name, kind }, place) {
  const sample = kind === "bars"
    ? svg("rect", { class: "series", x: 8, y: 1, width: 10, height: 10 })
    : svg("path", { class: "series", d: "M0 6H26", style: `stroke-dasharray:${DASHES[place % DASHES.length]}` });
  return el("li", { class: colourOf(place) },
    svg("svg", { width: 26, height: 12, "aria-hidden": "true" }, sample), name);
}

function picture(title, data, width) {
  const room = {
    left: MARGIN.left, right: Math.max(width, 280) - MARGIN.right, top: MARGIN.top, bottom: HEIGHT - MARGIN.bottom,
  };
  const { spanX, spanY } = spans(data);
  const scale = {
    x: (value) => room.left + ((value - spanX[0]) / (spanX[1] - spanX[0])) * (room.right - room.left),
    y: (value) => room.bottom - ((value - spanY[0]) / (spanY[1] - spanY[0])) * (room.bottom - room.top),
  };
  const all = svg("svg", {
    width: Math.max(width, 280), height: HEIGHT, role: "img", "aria-label": `${title}. ${inWords(data)}`,
  });
  all.append(...axes(data, room, scale, spanX, spanY));
  data.series.forEach((series, place) => all.append(...drawn(series, place, scale, room)));
  return all;
}

/** The ranges of both axes. An empty range becomes a small one, because it is divided by. */
function spans({ series, y }) {
  let [left, right, top] = [Infinity, -Infinity, y.max ?? 0];
  for (const { points } of series) {
    for (const [x, value] of points) {
      if (x < left) left = x;
      if (x > right) right = x;
      if (value !== null && value > top) top = value;
    }
  }
  if (left > right) [left, right] = [0, 1];
  if (left === right) right = left + 1;
  return { spanX: [left, right], spanY: [0, top > 0 ? top * 1.05 : 1] };
}

/** Round values inside a range, about `most` of them. */
export function ticks([from, to], most) {
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough);
  const found = [];
  for (let place = Math.ceil(from / step); place * step <= to; place += 1) found.push(place * step);
  return found;
}

function axes({ x, y }, room, scale, spanX, spanY) {
  const parts = [];
  for (const value of ticks(spanY, 4)) {
    const place = scale.y(value);
    parts.push(svg("path", { class: "grid", d: `M${room.left} ${place}H${room.right}` }),
      svg("text", { class: "faint", x: room.left - 6, y: place + 4, "text-anchor": "end" }, y.format(value)));
  }
  for (const value of ticks(spanX, (room.right - room.left) / 110)) {
    const place = scale.x(value);
    parts.push(svg("path", { class: "axis", d: `M${place} ${room.bottom}v4` }),
      svg("text", { class: "faint", x: place, y: room.bottom + 18, "text-anchor": "middle" }, x.format(value)));
  }
  parts.push(svg("path", { class: "axis", d: `M${room.left} ${room.top}V${room.bottom}H${room.right}` }),
    svg("text", { class: "faint", x: room.right, y: HEIGHT - 6, "text-anchor": "end" }, x.label));
  if (y.label) parts.push(svg("text", { class: "faint", x: room.left - 6, y: 12 }, y.label));
  return parts;
}

function drawn({ points, kind, name }, place, scale, room) {
  const colour = colourOf(place);
  if (kind === "bars") {
    const wide = Math.max(1.5, Math.min(14, ((room.right - room.left) / Math.max(1, points.length)) * 0.7));
    return points.filter(([, value]) => value).map(([x, value]) => svg("rect", {
      class: `series ${colour}`, x: scale.x(x) - wide / 2, width: wide,
      y: scale.y(value), height: Math.max(1, room.bottom - scale.y(value)),
    }));
  }
  const path = svg("path", { class: `series ${colour}`, d: pathOf(thin(points), kind, scale) });
  path.style.strokeDasharray = DASHES[place % DASHES.length];
  path.append(svg("title", {}, name));
  return [path];
}

function pathOf(points, kind, scale) {
  let path = "";
  let lifted = true;
  for (const [x, value] of points) {
    if (value === null || value === undefined) {
      lifted = true;
      continue;
    }
    const [left, top] = [scale.x(x).toFixed(1), scale.y(value).toFixed(1)];
    if (lifted) path += `M${left} ${top}`;
    else path += kind === "step" ? `H${left}V${top}` : `L${left} ${top}`;
    lifted = false;
  }
  return path;
}

/** At most `MOST_POINTS` points: of each group the least and the greatest, so that peaks stay. */
function thin(points) {
  if (points.length <= MOST_POINTS) return points;
  const group = Math.ceil(points.length / (MOST_POINTS / 2));
  const kept = [];
  for (let from = 0; from < points.length; from += group) {
    let [least, most] = [from, from];
    const end = Math.min(points.length, from + group);
    for (let place = from; place < end; place += 1) {
      if (points[place][1] < points[least][1]) least = place;
      if (points[place][1] > points[most][1]) most = place;
    }
    kept.push(points[Math.min(least, most)]);
    if (least !== most) kept.push(points[Math.max(least, most)]);
  }
  return kept;
}

function inWords({ series, y }) {
  return series.map(({ name, points }) => {
    const values = points.map(([, value]) => value).filter((value) => value !== null && value !== undefined);
    if (values.length === 0) return `${name}: no values.`;
    const [least, most] = values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)],
      [Infinity, -Infinity]);
    return `${name}: from ${y.format(least)} to ${y.format(most)}, at the end ${y.format(values.at(-1))}.`;
  }).join(" ");
}

/**
 * The values as a table: one column for each series if they share their times, else one line for each point.
 */
function table({ x, y, series }) {
  const text = (value) => (value === null || value === undefined ? "–" : y.format(value));
  const [first] = series;
  const shared = series.every(({ points }) => points.length === first.points.length
    && points.every(([time], place) => time === first.points[place][0]));
  const rows = shared && first
    ? first.points.map(([time], place) => [x.format(time), ...series.map(({ points }) => text(points[place][1]))])
    : series.flatMap(({ name, points }) => points.map(([time, value]) => [name, x.format(time), text(value)]));
  const every = Math.max(1, Math.ceil(rows.length / MOST_ROWS));
  const head = shared ? [x.label, ...series.map(({ name }) => name)] : ["series", x.label, y.label || "value"];
  const caption = every > 1 ? `Every ${every}th of ${rows.length} lines` : "";
  return plainTable(head, rows.filter((_, place) => place % every === 0), { caption });
}
