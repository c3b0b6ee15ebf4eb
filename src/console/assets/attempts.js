// What one limit has counted, drawn over time: attempts, the window that they count in, and the block.

import { h, svg } from "./dom.js";
import { clock, exact, moment, now, plural, span } from "./format.js";

const HEIGHT = 92, LEFT = 10, RIGHT = 10, BASE = 66, DOT = 4.2;

/// How much of a label fits, in pixels for a letter.
const LETTER = 5.9;

/// `limit` is an explained limit, `window` the length in ms for which a failure counts (null forever, undefined unknown).
export function attemptsChart(limit, window, isOpen) {
  const time = now();
  const dots = limit.attempts.map((attempt) => ({ ...attempt, time: Math.min(Date.parse(attempt.at), attempt.in_flight ? time : Infinity) })).reverse();
  const counted = dots.filter((dot) => dot.counts).length;
  const summary = `${plural(dots.length, "attempt")} drawn, ${counted} of them ${counted === 1 ? "counts" : "count"}.`;
  const picture = svg("svg", { role: "img", "aria-label": `${limit.words}. ${summary}` });
  const draw = (width) => {
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.replaceChildren(...drawing(limit, window, dots, time, width));
  };
  draw(640);
  // Letters keep their size on a phone.
  new ResizeObserver(([{ contentRect }]) => { if (contentRect.width) draw(Math.round(contentRect.width)); }).observe(picture);
  return h("figure", { class: "attempts" }, picture,
    dots.length > 0 && h("details", { open: isOpen }, h("summary", {}, limit.kept > dots.length ? `The newest ${dots.length} of ${limit.kept} attempts as a list` : `${plural(dots.length, "attempt")} as a list`),
      h("ol", { class: "attempt-list" }, dots.slice().reverse().map((dot) => h("li", {}, h("time", { datetime: dot.at }, exact(dot.time)), " ",
        h("span", { class: "muted" }, dot.in_flight ? "in flight" : "failed", dot.counts ? ", counts" : ", no longer counts", " "), h("code", {}, dot.attempt))))));
}

/// What is in the picture, `width` pixels wide.
function drawing(limit, window, dots, time, width) {
  const since = limit.since ? Date.parse(limit.since) : null;
  const lifts = limit.lifts_at ? Date.parse(limit.lifts_at) : null;
  const isBlocked = limit.state === "blocked";
  const first = Math.min(time - 60_000, ...dots.map((dot) => dot.time), since ?? Infinity);
  const from = first - (time - first) * 0.06;
  const until = lifts ?? (isBlocked ? time + (time - from) * 0.5 : time);
  // The past has a scale of its own: a block of days must not squeeze guesses of seconds into one point.
  const pastWidth = (width - LEFT - RIGHT) * (until > time ? 0.68 : 0.97);
  const x = (t) => (t <= time ? LEFT + (pastWidth * (t - from)) / Math.max(1, time - from)
    : LEFT + pastWidth + ((width - LEFT - RIGHT - pastWidth) * (t - time)) / Math.max(1, until - time));

  const parts = [];
  if (window !== undefined && !isBlocked) {
    const begins = window === null ? from : Math.max(from, time - window);
    parts.push(svg("rect", { class: "window", x: x(begins), y: 14, width: Math.max(2, x(time) - x(begins)), height: BASE - 14, rx: 3 }),
      svg("text", { class: "window-label", x: x(begins) + 6, y: 26 }, window === null ? "counts for good" : time - window < from ? `window of ${span(window)}, began earlier` : `window of ${span(window)}`));
  }
  if (isBlocked) {
    const begins = since ?? from;
    const wide = Math.max(4, x(until) - x(begins));
    parts.push(svg("rect", { class: `block-band ${limit.shadow ? "shadow" : ""}`, x: x(begins), y: 14, width: wide, height: BASE - 14, rx: 3 }));
    // Where neither dots nor the line of now cross it, in full or in short.
    const labels = [lifts === null ? "blocked until an operator lifts it" : `blocked until ${moment(lifts)}`, "blocked"];
    const label = labels.find((text) => x(time) + 8 + text.length * LETTER < width - RIGHT);
    if (label) parts.push(svg("text", { class: "block-label", x: x(time) + 8, y: 26 }, label));
  }
  parts.push(svg("line", { class: "base", x1: LEFT, x2: width - RIGHT, y1: BASE, y2: BASE }));
  // Attempts at nearly the same time are stacked.
  const stacks = [];
  for (const dot of dots) {
    const place = x(dot.time);
    const stack = stacks.findLast((one) => Math.abs(one.place - place) < DOT * 1.9);
    if (stack) stack.dots.push(dot); else stacks.push({ place, dots: [dot] });
  }
  for (const { place, dots } of stacks) {
    const room = 5;
    dots.slice(0, room).forEach((dot, i) => parts.push(svg("circle", {
      class: `attempt ${dot.counts ? "counts" : ""} ${dot.in_flight ? "flying" : ""}`, cx: place, cy: BASE - DOT - 2 - i * DOT * 2.1, r: DOT,
    }, svg("title", {}, `${dot.in_flight ? "in flight" : "failed"} ${exact(dot.time)}${dot.counts ? "" : ", no longer counts"}`))));
    const isNear = Math.abs(x(time) - place) < 40;
    if (dots.length > room) parts.push(svg("text", { class: "more", x: place + (isNear ? -1 : 1) * (DOT + 4), y: BASE - 4, "text-anchor": isNear ? "end" : "start" }, `×${dots.length}`));
  }
  const label = (t, text, anchor) => svg("text", { class: "time", x: x(t), y: HEIGHT - 8, "text-anchor": anchor }, text);
  parts.push(svg("line", { class: "now", x1: x(time), x2: x(time), y1: 8, y2: BASE + 6 }), label(time, "now", until > time ? "middle" : "end"));
  if (dots.length) {
    const oldest = dots[0].time;
    if (x(time) - x(oldest) > 90) parts.push(label(oldest, time - oldest > 86_400_000 ? moment(oldest) : clock(oldest), x(oldest) < 50 ? "start" : "middle"));
  }
  if (lifts && x(lifts) - x(time) > 90) parts.push(label(lifts, moment(lifts), "end"));
  return parts;
}
