// Times, lengths and numbers as people read them.

const UNITS = [["day", 86_400_000], ["hour", 3_600_000], ["minute", 60_000], ["second", 1_000], ["millisecond", 1]];
const SHORT = { day: "d", hour: "h", minute: "min", second: "s", millisecond: "ms" };

let skew = 0;
/// The server's clock decides: a browser may be minutes off.
export const setNow = (text) => { const at = Date.parse(text); if (at) skew = at - Date.now(); };
export const now = () => Date.now() + skew;

// Made once: a format takes longer to make than a row of a table to draw.
const full = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
const number = new Intl.NumberFormat("en-US");
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
export const count = (n) => number.format(n ?? 0);
export const brief = (n) => (n < 10_000 ? number.format(n ?? 0) : compact.format(n));
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/// A length in its two largest units: "23 h 59 min".
export function span(ms) {
  if (ms === null || ms === undefined) return "forever";
  let left = Math.max(0, ms);
  if (left < 1_000) return left < 1 ? "0 s" : "1 s";
  const parts = [];
  for (const [unit, size] of UNITS.slice(0, 4)) {
    const n = Math.floor(left / size);
    left -= n * size;
    if (n > 0 || parts.length) parts.push([n, SHORT[unit]]);
    if (parts.length === 2) break;
  }
  return parts.filter(([n]) => n > 0).map(([n, unit]) => `${n} ${unit}`).join(" ");
}

/// The milliseconds of a length in words, as the API writes it; null is forever, undefined if it is none.
export function parsePeriod(text) {
  if (!text) return undefined;
  if (text === "forever") return null;
  let sum = 0;
  for (const [, n, unit] of text.matchAll(/(\d+) (day|hour|minute|second|millisecond)s?/g)) {
    sum += Number(n) * UNITS.find(([name]) => name === unit)[1];
  }
  return sum || undefined;
}

const pad = (n) => String(n).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
export const clock = (at) => { const d = new Date(at); return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`; };
export const hourMinute = (at) => { const d = new Date(at); return `${pad(d.getHours())}:${pad(d.getMinutes())}`; };

/// The time of today, and the day before it otherwise.
export function moment(at) {
  const d = new Date(at), today = new Date(now());
  const time = hourMinute(at);
  if (d.toDateString() === today.toDateString()) return time;
  const year = d.getFullYear() === today.getFullYear() ? "" : ` ${d.getFullYear()}`;
  return `${d.getDate()} ${MONTHS[d.getMonth()]}${year}, ${time}`;
}

export const ago = (at) => { const ms = now() - at; return ms < 1_000 ? "just now" : `${span(ms).split(" ").slice(0, 2).join(" ")} ago`; };
/// Exact, in the zone of the browser, for titles.
export const exact = (at) => full.format(at);

/// When something ends: how long it takes, or the day if that is far away.
export function ends(at) {
  if (at - now() < 5_184_000_000) return `in ${span(at - now())}`;
  const d = new Date(at);
  return `${d.getDate()} ${MONTHS[d.getMonth()]} ${d.getFullYear()}`;
}

/// The time left, as a clock for hours and in units beyond.
export function left(ms) {
  if (ms <= 0) return "over";
  if (ms >= 172_800_000) return span(ms);
  const s = Math.ceil(ms / 1_000);
  const rest = `${pad(Math.floor(s / 60) % 60)}:${pad(s % 60)}`;
  return s >= 3_600 ? `${Math.floor(s / 3_600)}:${rest}` : rest;
}

/// Keeps every element with `data-lifts` (a time) and `data-ago` up to date, once a second.
export function tickAll(root = document) {
  for (const element of root.querySelectorAll("[data-lifts]")) {
    const text = left(Number(element.dataset.lifts) - now());
    if (element.textContent !== text) element.textContent = text;
  }
  for (const element of root.querySelectorAll("[data-ago]")) {
    const text = ago(Number(element.dataset.ago));
    if (element.textContent !== text) element.textContent = text;
  }
}

/// What an operator has typed into a field of search.
export function subjectOf(text) {
  const typed = text.trim();
  if (!typed) return {};
  const [ip, bits] = typed.split("/");
  const isIp = /^\d{1,3}(\.\d{1,3}){3}$/.test(ip) || (ip.includes(":") && /^[0-9a-f:.]+$/i.test(ip));
  if (isIp && bits !== undefined && /^\d{1,3}$/.test(bits)) return { network: typed };
  if (isIp && bits === undefined) return { address: typed };
  return { user: typed };
}

export const query = (values) => {
  const set = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return new URLSearchParams(set.map(([key, value]) => [key, String(value)])).toString();
};

export const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(part * 10 < whole ? 1 : 0)} %` : "0 %");
