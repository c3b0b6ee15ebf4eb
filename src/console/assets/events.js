// The tail of events, as they happen.

import { api, exportUrl } from "./api.js";
import { button, debounce, empty, h, select } from "./dom.js";
import { clock, count, exact, query, subjectOf } from "./format.js";
import { onTick } from "./live.js";
import { virtualTable } from "./table.js";
import { EVENTS, eventName, eventWords, tone, who } from "./words.js";

export const title = () => "Events";

const KEPT = 3_000;

export async function show({ content, actions, params, signal }) {
  const kind = select([["", "All events"], ...Object.entries(EVENTS)], params.event ?? "", { "aria-label": "Event", id: "event" });
  const rule = h("input", { type: "search", placeholder: "Rule", "aria-label": "Rule", value: params.rule ?? "", spellcheck: "false", class: "short" });
  const find = h("input", { type: "search", placeholder: "Address or user", "aria-label": "Address or user", value: params.find ?? "", spellcheck: "false" });
  const state = h("p", { class: "muted count", role: "status" });
  const pause = button("Pause", () => setPaused(!paused), { symbol: "pause", id: "pause", "aria-pressed": "false" });
  const links = ["jsonl", "csv"].map((format) => h("a", { class: "button", download: `events.${format}`, data: { format } }, format === "csv" ? "CSV" : "JSON lines"));
  actions.append(pause, h("span", { class: "export" }, h("span", { class: "muted" }, "Export"), links));
  const table = virtualTable({
    caption: "Events, the newest first", signal, id: (event) => event.key, rowHeight: 36, cardHeight: 92, rowClass: (event) => `tone-${tone(event) || "none"}`,
    columns: [
      { key: "at", label: "Time", class: "time-cell", cell: (event) => h("time", { datetime: event.at, title: exact(Date.parse(event.at)) }, clock(Date.parse(event.at))) },
      { key: "event", label: "Event", class: "kind-cell", cell: (event) => h("span", { class: `chip ${tone(event)}` }, eventName(event)) },
      { key: "who", label: "Who", class: "who-cell", cell: (event) => who(event) },
      { key: "rule", label: "Rule", class: "rule-cell", cell: (event) => event.rule ?? "" },
      { key: "words", label: "What", class: "what-cell", cell: (event) => { const text = eventWords(event); return h("span", { title: text }, text); } },
    ],
  });
  const holder = h("div", { class: "holder" }, table.element);
  content.append(h("div", { class: "toolbar" }, kind, find, rule, state), holder);

  let list = [], paused = false, waiting = [], omitted = 0, keys = 0;
  const filter = () => {
    const { address, network, user } = subjectOf(find.value);
    return { event: kind.value, rule: rule.value.trim(), address: address ?? network?.split("/")[0], user };
  };
  const matches = (event, { event: name, rule, address, user }) =>
    (!name || event.event === name) && (!rule || event.rule === rule) && (!address || event.address?.split("/")[0] === address) && (!user || event.user === user);
  const keyed = (event) => ({ ...event, key: String(++keys) });

  function draw() {
    table.set(list);
    holder.replaceChildren(list.length ? table.element : empty("No event", kind.value || find.value || rule.value ? "None of the events that are kept matches; new ones appear here." : "Nothing has happened since the server was started, or it has no feed: see with_feed."));
    state.textContent = `${count(list.length)} shown${omitted ? `, ${count(omitted)} left out in the busiest seconds` : ""}${paused ? `, ${count(waiting.length)} waiting` : ""}`;
    for (const link of links) link.href = exportUrl(query({ ...filter(), format: link.dataset.format }));
  }

  function setPaused(next) {
    paused = next;
    pause.setAttribute("aria-pressed", String(paused));
    pause.lastElementChild.textContent = paused ? "Continue" : "Pause";
    if (!paused) { list = [...waiting, ...list].slice(0, KEPT); waiting = []; }
    draw();
  }

  async function load() {
    const answer = await api(`events?${query({ ...filter(), limit: 500 })}`, { signal });
    list = answer.events.map(keyed);
    waiting = []; omitted = 0;
    draw();
  }

  onTick((tick) => {
    const wanted = filter();
    const news = tick.events.filter((event) => matches(event, wanted)).map(keyed).reverse();
    omitted += tick.omitted;
    if (!news.length) return;
    // A reader further down is not moved.
    const reads = table.element.scrollTop > 40;
    if (paused || reads) waiting = [...news, ...waiting].slice(0, KEPT);
    else { list = [...news, ...waiting, ...list].slice(0, KEPT); waiting = []; }
    if (document.hidden) return;
    if (paused || reads) state.textContent = `${count(list.length)} shown, ${count(waiting.length)} waiting${reads && !paused ? ": scroll to the top" : ""}`;
    else draw();
  }, signal);
  const again = debounce(250, () => load().catch((error) => { state.textContent = error.message; }));
  for (const input of [kind, rule, find]) input.addEventListener("input", again);
  await load();
}
