// What happens at the login now.

import { api, status } from "./api.js";
import { timeChart } from "./chart.js";
import { button, card, empty, h, render } from "./dom.js";
import { brief, count, exact, moment, percent, plural, span } from "./format.js";
import { onTick } from "./live.js";
import { eventWords, isName, subjectLink, who } from "./words.js";

export const title = () => "Overview";

const SERIES = [
  { key: "successes", label: "Logged in", tone: "ok" },
  { key: "failures", label: "Failed", tone: "warn" },
  { key: "refusals", label: "Refused", tone: "info" },
  { key: "blocks", label: "Blocks begun", tone: "bad", bars: true, short: "blocks" },
];

const stat = (label) => {
  const value = h("b", {}, "…"), note = h("small", {});
  const element = h("div", { class: "stat" }, h("span", { class: "stat-label" }, label), value, note);
  return { element, set(text, more, tone = "") { value.textContent = text; note.replaceChildren(more ?? ""); element.dataset.tone = tone; } };
};

/// A list with a bar behind each number.
function ranking(rows, { caption, head, name, number, parts }) {
  const most = Math.max(1, ...rows.map(number));
  return h("table", { class: "ranking" }, h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, head[0]), head.slice(1).map((text) => h("th", { scope: "col", class: "num" }, text)))),
    h("tbody", {}, rows.map((row) => h("tr", {},
      h("th", { scope: "row" }, name(row), h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${(100 * number(row)) / most}%` } }))),
      parts(row).map((text) => h("td", { class: "num" }, text))))));
}

export async function show({ content, actions, signal }) {
  const attempts = stat("This minute"), blocks = stat("Blocks in force"), policy = stat("Policy"), store = stat("Store");
  const chart = timeChart({ label: "Attempts per minute", series: SERIES });
  const ranges = [60, 180].map((minutes) => button(minutes === 60 ? "1 hour" : "3 hours", () => setRange(minutes), { kind: "segment", "aria-pressed": String(minutes === 60) }));
  const byRule = card("Blocks in force by rule", { class: "by-rule" }), wrong = card("Probably wrong blocks", { class: "wrong" });
  const addresses = card("Busiest addresses", {}), users = card("Most targeted users", {}), signals = card("Signals of attacks", { class: "signals" });
  const main = h("section", { class: "card chart-card", "aria-label": "Attempts per minute" }, h("div", { class: "card-head" }, h("h2", {}, "Attempts per minute"), h("div", { class: "segments" }, ranges)), chart.element);
  content.append(h("div", { class: "stats" }, attempts.element, blocks.element, policy.element, store.element), main,
    h("div", { class: "grid-2" }, addresses, users), h("div", { class: "grid-3" }, byRule, wrong, signals));

  let minutes = [], range = 60;
  function setRange(next) {
    range = next;
    ranges.forEach((one, i) => one.setAttribute("aria-pressed", String([60, 180][i] === range)));
    draw();
  }
  function draw() {
    const last = minutes.slice(-range).map((minute) => ({ ...minute, at: Date.parse(minute.at) }));
    // Before the first minute there was nothing to count.
    while (last.length && last.length < range) last.unshift({ at: last[0].at - 60_000, successes: 0, failures: 0, refusals: 0, blocks: 0 });
    chart.update(last);
    const newest = minutes.at(-1);
    if (newest) attempts.set(brief(newest.successes + newest.failures + newest.refusals + (newest.other ?? 0)), `${count(newest.successes)} in · ${count(newest.failures)} failed · ${count(newest.refusals)} refused`);
  }

  const fill = (section, node) => render(section, section.querySelector("h2"), node);

  async function slow(background) {
    const options = { background, signal };
    const [answer, counts, busiest, table, found] = await Promise.all([status(options), api("block-counts", options), api("busiest?count=8", options), api("wrong-blocks", options), api("events?event=signal&limit=6", options).catch(() => ({ events: [] }))]);
    const list = counts.rules, { rows } = table;
    const sum = list.reduce((all, row) => all + row.blocks, 0);
    blocks.set(count(sum), h("a", { href: "#/blocks" }, "See them all"), "");
    policy.set(`Version ${answer.version}`, h("a", { href: "#/policy" }, answer.instances === null ? "instances not known now" : answer.instances ? `on ${answer.up_to_date} of ${plural(answer.instances, "instance")}` : "this process alone"), answer.up_to_date < answer.instances ? "warn" : "");
    const { degraded, journal } = answer.store;
    store.set(degraded ? "Down" : "Healthy", degraded ? `breaker open; ${plural(journal, "write")} in the journal` : journal ? `${plural(journal, "write")} to replay` : "breaker closed, journal empty", degraded ? "bad" : "ok");
    fill(byRule, sum ? ranking(list.filter((row) => row.blocks), { caption: "Blocks in force by rule", head: ["Rule", "Blocks"], number: (row) => row.blocks, name: (row) => h("a", { href: `#/blocks?rule=${encodeURIComponent(row.rule)}` }, row.rule), parts: (row) => [count(row.blocks)] })
      : empty("No block is in force", "Failures count; when a rule's limit is reached, its block is listed here."));
    const busy = (section, list, name, head) => fill(section, list.length
      ? ranking(list, { caption: `${head}, by failures and refusals of the last hour`, head: [head, "Failed", "Refused"], number: (row) => row.failures + row.refusals, name, parts: (row) => [brief(row.failures), brief(row.refusals)] })
      : empty("Quiet", "Nobody has failed within the last hour, or the limiter has no insight: see with_insight."));
    busy(addresses, busiest.addresses, (row) => h("a", { class: "mono", href: subjectLink({ address: row.id }) }, row.id), "Address");
    busy(users, busiest.users, (row) => (isName(row.shown) ? h("a", { href: subjectLink({ user: row.shown }) }, row.shown) : h("span", { class: "mono" }, row.shown ?? row.id)), "User");
    fill(wrong, wrongTable(rows));
    fill(signals, found.events.length ? h("ul", { class: "plain" }, found.events.map((event) => h("li", {}, h("span", { class: "dot-bad", "aria-hidden": "true" }), h("div", {}, h("p", {}, who(event), " ", eventWords(event)), h("small", { class: "muted", title: exact(Date.parse(event.at)) }, moment(Date.parse(event.at)))))))
      : empty("No signal", "One address at many users, one user from many addresses, or far more failures than usual would be reported here."));
  }

  try {
    ({ minutes } = await api("activity", { signal }));
    draw();
  } catch (error) {
    if (error.status !== 404) throw error;
    main.append(empty("No events", error.message));
  }
  onTick((tick) => {
    if (!tick.minutes.length) return;
    for (const minute of tick.minutes) {
      const newest = minutes.at(-1);
      if (newest && Date.parse(newest.at) === Date.parse(minute.at)) minutes[minutes.length - 1] = minute;
      else minutes = [...minutes, minute].slice(-180);
    }
    if (!document.hidden) draw();
  }, signal);
  await slow(false);
  const timer = setInterval(() => { if (!document.hidden) slow(true).catch(() => {}); }, 5_000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/// The last week by rule: how many blocks, how many of them probably wrong, and what they stopped.
function wrongTable(rows) {
  const today = Math.floor(Date.now() / 86_400_000);
  const byRule = new Map();
  for (const row of rows.filter((row) => row.day > today - 7)) {
    const sum = byRule.get(row.rule) ?? { rule: row.rule, blocks: 0, wrong: 0, stopped: 0 };
    for (const key of ["blocks", "wrong", "stopped"]) sum[key] += row[key];
    byRule.set(row.rule, sum);
  }
  if (!byRule.size) return empty("Nothing to judge yet", `A block counts as probably wrong if the same user logs in soon after it, or an operator lifts it. The last ${span(7 * 86_400_000)} are counted.`);
  return h("table", { class: "plain-table" }, h("caption", { class: "small muted" }, "Last 7 days. Wrong: the user logged in soon after, or an operator lifted it."),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Rule"), ["Blocks", "Wrong", "Stopped"].map((text) => h("th", { scope: "col", class: "num" }, text)))),
    h("tbody", {}, [...byRule.values()].map((row) => h("tr", {}, h("th", { scope: "row" }, row.rule), h("td", { class: "num" }, count(row.blocks)),
      h("td", { class: `num ${row.wrong * 10 > row.blocks ? "warn-text" : ""}` }, count(row.wrong), h("small", { class: "muted" }, ` ${percent(row.wrong, row.blocks)}`)), h("td", { class: "num" }, brief(row.stopped))))));
}
