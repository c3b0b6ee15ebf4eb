// A chart of numbers per minute: lines above, and one series as bars in a lane of its own below.

import { h, svg } from "./dom.js";
import { brief, count, hourMinute } from "./format.js";

const HEIGHT = 268, LANE = 46, GAP = 18, TOP = 12, LEFT = 44, RIGHT = 12, AXIS = 22;

/// A round maximum, and where lines are drawn below it.
function scale(max) {
  const rough = Math.max(max, 4) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough && Number.isInteger(n)) ?? 10 * power;
  const steps = Math.max(1, Math.ceil(max / step));
  return { max: step * steps, ticks: Array.from({ length: steps + 1 }, (_, i) => i * step) };
}

/// `series`: [{ key, label, tone, bars }]. Returns the element and `update(points)`, with points { at, [key]: n }.
export function timeChart({ label, series }) {
  const hidden = new Set();
  let points = [], width = 800, chosen = -1, frame = 0;
  const lines = series.filter((one) => !one.bars), bars = series.find((one) => one.bars);

  const grid = svg("g", { class: "grid" }), axis = svg("g", { class: "axis" }), lane = svg("g", { class: `bars tone-${bars.tone}` });
  const shapes = new Map(lines.map((one) => [one.key, {
    area: svg("path", { class: `area tone-${one.tone}` }), line: svg("path", { class: `line tone-${one.tone} dash-${one.tone}` }), dot: svg("circle", { r: 3.5, class: `dot tone-${one.tone}` }),
  }]));
  const cursor = svg("line", { class: "cursor" });
  const picture = svg("svg", { class: "chart", height: HEIGHT, "aria-hidden": "true" }, grid, axis,
    [...shapes.values()].map((shape) => shape.area), [...shapes.values()].map((shape) => shape.line), lane, cursor, [...shapes.values()].map((shape) => shape.dot));
  const tip = h("div", { class: "tip", "aria-hidden": "true" });
  const spoken = h("output", { class: "hidden" });
  const plot = h("div", { class: "plot", tabindex: "0", role: "group", "aria-label": `${label}. Left and right arrow keys read the minutes.` }, picture, tip, spoken);
  const legend = h("ul", { class: "legend" }, series.map((one) => {
    const toggle = h("button", { type: "button", class: "legend-item", "aria-pressed": "true", onclick: () => {
      if (hidden.has(one.key)) hidden.delete(one.key); else hidden.add(one.key);
      toggle.setAttribute("aria-pressed", String(!hidden.has(one.key)));
      draw();
    } }, svg("svg", { viewBox: "0 0 18 10", class: "swatch", "aria-hidden": "true" },
      one.bars ? svg("rect", { x: 5, width: 8, height: 10, class: `bars tone-${one.tone}` }) : svg("path", { d: "M1 5h16", class: `line tone-${one.tone} dash-${one.tone}` })), one.label);
    return h("li", {}, toggle);
  }));
  const body = h("tbody", {});
  const table = h("details", { class: "as-table", ontoggle: () => table.open && fillTable() }, h("summary", {}, "Show as a table"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, as a table` },
      h("table", {}, h("caption", { class: "hidden" }, label), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Minute"), series.map((one) => h("th", { scope: "col", class: "num" }, one.label)))), body)));

  const bottom = HEIGHT - AXIS - LANE - GAP;
  const x = (i) => LEFT + ((width - LEFT - RIGHT) * i) / Math.max(1, points.length - 1);

  function fillTable() {
    body.replaceChildren(...points.slice().reverse().map((point) =>
      h("tr", {}, h("th", { scope: "row" }, hourMinute(point.at)), series.map((one) => h("td", { class: "num" }, count(point[one.key]))))));
  }

  function draw() {
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.setAttribute("width", width);
    if (!points.length) return;
    const shown = lines.filter((one) => !hidden.has(one.key));
    const { max, ticks } = scale(Math.max(0, ...shown.flatMap((one) => points.map((point) => point[one.key]))));
    const y = (n) => bottom - ((bottom - TOP) * n) / max;
    grid.replaceChildren(...ticks.flatMap((tick) => [
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, brief(tick)),
    ]));
    const every = Math.max(1, Math.ceil(points.length / Math.max(2, Math.floor(width / 110)) / 5) * 5);
    axis.replaceChildren(...points.flatMap((point, i) => (new Date(point.at).getMinutes() % every === 0 || every >= 60 && i % every === 0
      ? [svg("text", { x: Math.min(x(i), width - RIGHT - 4), y: HEIGHT - 6, "text-anchor": i > points.length - 4 ? "end" : "middle" }, hourMinute(point.at))] : [])),
      svg("text", { x: LEFT - 8, y: HEIGHT - AXIS - LANE + 10, "text-anchor": "end" }, bars.short ?? ""),
      svg("line", { x1: LEFT, x2: width - RIGHT, y1: HEIGHT - AXIS, y2: HEIGHT - AXIS }));
    for (const one of lines) {
      const { area, line } = shapes.get(one.key);
      const path = hidden.has(one.key) ? "" : points.map((point, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(point[one.key]).toFixed(1)}`).join("");
      line.setAttribute("d", path);
      area.setAttribute("d", path && `${path}L${x(points.length - 1).toFixed(1)} ${bottom}L${LEFT} ${bottom}Z`);
    }
    const most = Math.max(1, ...points.map((point) => point[bars.key]));
    const wide = Math.max(1.5, Math.min(9, (width - LEFT - RIGHT) / points.length - 1.5));
    lane.replaceChildren(...(hidden.has(bars.key) ? [] : points.flatMap((point, i) => {
      const n = point[bars.key];
      if (!n) return [];
      const tall = Math.max(3, (LANE * n) / most);
      return [svg("rect", { x: Math.max(LEFT, Math.min(x(i) - wide / 2, width - RIGHT - wide)), width: wide, y: HEIGHT - AXIS - tall, height: tall, rx: Math.min(1.5, wide / 2) })];
    })));
    point(chosen, y);
  }

  function point(i, y) {
    const at = points[i];
    plot.classList.toggle("pointed", Boolean(at));
    if (!at) return;
    cursor.setAttribute("x1", x(i)); cursor.setAttribute("x2", x(i));
    cursor.setAttribute("y1", TOP); cursor.setAttribute("y2", HEIGHT - AXIS);
    for (const one of lines) {
      const { dot } = shapes.get(one.key);
      dot.setAttribute("cx", x(i)); dot.setAttribute("cy", y(at[one.key]));
      dot.classList.toggle("off", hidden.has(one.key));
    }
    tip.replaceChildren(h("b", {}, hourMinute(at.at)), ...series.map((one) => h("span", { class: `tone-${one.tone}` }, h("i", {}), one.label, h("em", {}, count(at[one.key])))));
    const side = x(i) > width / 2;
    tip.style.setProperty("left", side ? "auto" : `${x(i) + 12}px`);
    tip.style.setProperty("right", side ? `${width - x(i) + 12}px` : "auto");
  }

  const choose = (i, speak) => {
    chosen = i < 0 ? -1 : Math.min(i, points.length - 1);
    draw();
    const at = points[chosen];
    if (speak && at) spoken.textContent = `${hourMinute(at.at)}: ${series.map((one) => `${one.label} ${count(at[one.key])}`).join(", ")}`;
  };
  plot.addEventListener("pointermove", (event) => {
    const inside = event.clientX - picture.getBoundingClientRect().left - LEFT;
    const i = Math.round((inside / (width - LEFT - RIGHT)) * (points.length - 1));
    if (i !== chosen) choose(Math.max(0, i));
  });
  plot.addEventListener("pointerleave", () => choose(-1));
  plot.addEventListener("blur", () => choose(-1));
  plot.addEventListener("keydown", (event) => {
    const from = chosen < 0 ? points.length : chosen;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: points.length - 1, Escape: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(event.key === "Escape" ? -1 : Math.max(0, to), true);
  });
  new ResizeObserver(([entry]) => {
    width = Math.max(280, Math.round(entry.contentRect.width));
    draw();
  }).observe(plot);

  return {
    element: h("div", { class: "time-chart" }, h("div", { class: "legend-row" }, legend), plot, table),
    update(next) {
      points = next;
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => { draw(); if (table.open) fillTable(); });
    },
  };
}
