// What a policy would have done with the recorded events.

import { h } from "./dom.js";
import { count, exact, moment, plural, span } from "./format.js";
import { who } from "./words.js";

const figure = (value, label, tone) => h("div", { class: "figure", data: { tone: value ? tone : "" } }, h("b", {}, count(value)), h("span", {}, label));

const change = (before, after) => {
  const more = after - before;
  return [count(after), more ? h("small", { class: more > 0 ? "warn-text" : "ok-text" }, ` ${more > 0 ? "+" : "−"}${count(Math.abs(more))}`) : ""];
};

function subjects(title, { count: all, subjects: list }, columns, none) {
  if (!all) return h("div", {}, h("h3", {}, `${title}: nobody`), h("p", { class: "muted small" }, none));
  const shown = list.slice(0, 12);
  return h("div", {}, h("h3", {}, `${title}: ${count(all)}`), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, h("table", { class: "plain-table" }, h("caption", { class: "hidden" }, title),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Who"), h("th", { scope: "col" }, "Rule"), columns.map(([label]) => h("th", { scope: "col", class: "num" }, label)))),
    h("tbody", {}, shown.map((one) => h("tr", {}, h("th", { scope: "row" }, who(one)), h("td", {}, one.rule), columns.map(([, key]) => h("td", { class: `num ${key === "refused_successes" && one[key] ? "bad-text" : ""}` }, count(one[key])))))))),
    all > shown.length && h("p", { class: "muted small" }, `The ${shown.length} most affected are listed.`));
}

export function preview(report) {
  if (!report.attempts) return h("div", { class: "preview" }, h("p", { class: "notice" }, "There is no recorded attempt to replay: the feed is empty since the server was started."), notes(report));
  const from = Date.parse(report.from), to = Date.parse(report.to);
  return h("div", { class: "preview" },
    h("p", { class: "muted" }, `${plural(report.attempts, "recorded attempt")} of ${span(to - from)}, from ${moment(from)} to `, h("time", { datetime: report.to, title: exact(to) }, moment(to)), ", run through the real algorithms under this draft."),
    h("div", { class: "figures" }, figure(report.refused_guesses, "more guesses stopped", "ok"), figure(report.refused_successes, "honest logins refused", "bad"), figure(report.admitted, "refused attempts let through", "warn"),
      figure(report.blocked.count, "newly blocked", "warn"), figure(report.freed.count, "no longer blocked", "ok")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Blocks by rule, recorded and replayed" }, h("table", { class: "plain-table" }, h("caption", { class: "hidden" }, "Blocks by rule, recorded and replayed"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Rule"), ["Blocks before", "Blocks then", "Probably wrong", "Refused then"].map((text) => h("th", { scope: "col", class: "num" }, text)))),
      h("tbody", {}, report.rules.map((row) => h("tr", { class: row.is_replayed ? "" : "muted" }, h("th", { scope: "row" }, row.rule, row.is_replayed ? "" : h("small", {}, " not replayed")),
        h("td", { class: "num" }, count(row.recorded.blocks)), h("td", { class: "num" }, change(row.recorded.blocks, row.replayed.blocks)), h("td", { class: "num" }, change(row.recorded.wrong, row.replayed.wrong)), h("td", { class: "num" }, change(row.recorded.refused, row.replayed.refused))))))),
    subjects("Would have been blocked", report.blocked, [["Refused", "refused"], ["Honest", "refused_successes"]], "No address or user that was let through would have been blocked."),
    subjects("Would have been free", report.freed, [["Let through", "admitted"]], "Everybody who was blocked would have been blocked as well."), notes(report));
}

const notes = (report) => (report.notes.length ? h("ul", { class: "muted small" }, report.notes.map((note) => h("li", {}, note))) : null);
