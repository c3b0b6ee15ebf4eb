// One address, user, user at an address, or network: everything that counts, and what to do about it.

import { api, guard, operator, post, READ_ONLY } from "./api.js";
import { attemptsChart } from "./attempts.js";
import { blockByHand, windows } from "./blocks.js";
import { ask, toast } from "./dialog.js";
import { button, card, empty, h, render } from "./dom.js";
import { exact, moment, now, plural, query, span } from "./format.js";
import { condition, eventName, eventWords, FIELDS, subjectLink, tone } from "./words.js";

// A user may be named like an address, so it is called one.
const nameOf = ({ address, user, network }) => network ?? (user && !address ? `User ${user}` : [user, address].filter(Boolean).join(" at "));
export const title = (params) => nameOf(params) || "Find";

export async function show({ content, actions, params, signal }) {
  const { address, user, network } = params;
  const subject = network ? { network } : { address, user };
  if (!nameOf(params)) {
    content.append(empty("Who?", "Type an address, a network or a user into the field above."));
    return;
  }
  actions.append(guard(button("Block by hand", async () => { if (await blockByHand(subject)) draw(); }, { symbol: "block" })),
    guard(button("Unblock", unblock, { kind: "primary", symbol: "unblock", id: "unblock" })));

  async function draw() {
    const [explanation, lengths, found] = await Promise.all([api(`explain?${query(subject)}`, { signal }), windows(signal), history(subject, signal)]);
    const notes = found.filter((event) => event.event === "administered" && event.action === "note");
    render(content, verdict(explanation),
      h("div", { class: "grid-main" },
        h("div", { class: "column" }, limits(explanation, lengths, params), events(found.filter((event) => !notes.includes(event)))),
        h("div", { class: "column" }, pair(explanation), notesCard(notes), access(explanation), user && known(explanation))));
  }

  /// The other half of a pair: an address has users, a user has addresses.
  function pair(explanation) {
    if (network || (address && user)) return null;
    const input = h("input", { name: "other", autocomplete: "off", spellcheck: "false", "aria-label": address ? "User at this address" : "Address of this user", placeholder: address ? "User at this address" : "Address of this user" });
    const form = h("form", { class: "inline", onsubmit: (event) => {
      event.preventDefault();
      if (input.value.trim()) location.hash = subjectLink(address ? { address, user: input.value.trim() } : { address: input.value.trim(), user });
    } }, input, h("button", {}, "Look"));
    return card(address ? "A user here" : "At an address", {}, h("p", { class: "muted small" }, address
      ? "Rules that count by user and address are explained for a pair. Blocked pairs are listed here in any case."
      : "Rules that count by user and address are explained for a pair. Addresses where a block is in force are listed here in any case."), form);
  }

  function notesCard(notes) {
    const input = h("input", { name: "note", required: true, maxlength: "1000", autocomplete: "off", "aria-label": "Note", placeholder: "Ticket 4711: customer phoned…", disabled: !operator.mayOperate, title: operator.mayOperate ? null : READ_ONLY });
    const form = h("form", { class: "inline", id: "note", onsubmit: async (event) => {
      event.preventDefault();
      try {
        await post("notes", { ...subject, note: input.value });
        toast("Noted.", "ok");
        // Events arrive a moment later than the answer.
        setTimeout(draw, 400);
      } catch (error) { toast(error.message, "bad"); }
    } }, input, guard(h("button", {}, "Add")));
    return card("Notes", { class: "notes" }, notes.length ? h("ul", { class: "plain" }, notes.map((note) => h("li", {}, h("div", {}, h("p", {}, note.reason), h("small", { class: "muted" }, `${note.author}, ${moment(Date.parse(note.at))}`)))))
      : h("p", { class: "muted small" }, "None yet. A note is an event: it is kept as long as events are."), form);
  }

  function known(explanation) {
    const list = explanation.known_addresses;
    const forget = (which) => ask({ title: which ? "Forget this address" : "Forget all addresses", confirm: "Forget", danger: true, intro: `${which ?? "All known addresses"}: attempts of ${user} from there count like any others. After an account was taken over, for example.`,
      run: (form) => post("known-addresses/forget", { user, address: which, reason: form.get("reason") }) }).then((done) => { if (done) { toast("Forgotten.", "ok"); draw(); } });
    return card("Known addresses", {}, list.length ? [h("p", { class: "muted small" }, "The user has logged in from these. Rules for the account over all addresses exempt them."),
      h("ul", { class: "plain known" }, list.map((one) => h("li", {}, h("a", { class: "mono", href: subjectLink({ address: one, user }) }, one), guard(button("Forget", () => forget(one), { kind: "quiet small", "aria-label": `Forget ${one}` }))))),
      list.length > 1 && guard(button("Forget all", () => forget(), { kind: "quiet small" }))]
      : h("p", { class: "muted small" }, "None: this user, spelled like this, has not logged in lately, or the policy keeps none."));
  }

  async function unblock() {
    const pairs = h("input", { type: "checkbox", name: "pairs", id: "pairs" });
    const forgive = h("input", { type: "checkbox", name: "forgive", id: "forgive" });
    const done = await ask({ title: `Unblock ${nameOf(params)}`, confirm: "Unblock", danger: true,
      intro: "Lifts the blocks of exactly this subject, on every instance. What else is in the way is shown afterwards.",
      fields: [address && !user && h("label", { class: "check-line", for: "pairs" }, pairs, "Also the blocks of users at this address"),
        user && h("label", { class: "check-line", for: "forgive" }, forgive, "Also forgive the user's failures that do not block yet, as after a reset of the password")].filter(Boolean),
      run: async (form) => {
        const reason = form.get("reason");
        const answer = await post("unblock", { ...subject, with_pairs: pairs.checked || undefined, reason });
        if (forgive.checked) await post("forgive", { user, addresses: address ? [address] : undefined, reason });
        return answer;
      } });
    if (!done) return;
    const rest = done.refused_by.length + (done.denied_by ? 1 : 0);
    toast(`${plural(done.count, "block")} lifted.${rest ? ` Still refused by ${[done.denied_by?.name, ...done.refused_by.map((block) => block.rule)].filter(Boolean).join(", ")}.` : ""}`, rest ? "bad" : "ok");
    draw();
  }

  await draw();
}

/// The events of a subject that are kept, the newest first.
async function history({ address, user, network }, signal) {
  const filter = network ? { event: "administered", limit: 1_000 } : { address, user, limit: 50 };
  try {
    const { events } = await api(`events?${query(filter)}`, { signal });
    return network ? events.filter((event) => event.network === network) : events;
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}

/// What becomes of an attempt now, in one sentence.
function verdict(explanation) {
  const { decided_by: decides, limits } = explanation;
  const blocked = limits.filter((limit) => !limit.shadow && limit.state === "blocked");
  const busy = limits.filter((limit) => !limit.shadow && limit.state === "busy");
  const line = (kind, text, detail) => h("div", { class: `verdict ${kind}` }, h("b", {}, text), h("span", {}, detail));
  if (decides?.action === "deny") return line("bad", "Denied", `by the access rule ${decides.name}, ahead of all limits.`);
  if (decides?.action === "allow") return line("ok", "Allowed", `by the access rule ${decides.name}: no limit applies.`);
  if (blocked.length) {
    const last = blocked.some((limit) => !limit.lifts_at) ? null : Math.max(...blocked.map((limit) => Date.parse(limit.lifts_at)));
    const rules = [...new Set(blocked.map((limit) => limit.rule))].join(", ");
    return line("bad", "Blocked", last === null ? `by ${rules}, until an operator lifts it.` : `by ${rules}, for another ${span(last - now())}.`);
  }
  if (busy.length) return line("warn", "Busy", `refused while other attempts are in flight, by ${busy[0].rule}.`);
  const next = limits.filter((limit) => limit.next_failure.effect === "blocks" && !limit.shadow);
  if (next.length) return line("warn", "Admitted", `the next failure begins a block by ${next.map((limit) => limit.rule).join(", ")}.`);
  const least = Math.min(...limits.filter((limit) => limit.next_failure.effect === "counts" && !limit.shadow).map((limit) => limit.next_failure.remaining));
  return line("ok", "Admitted", Number.isFinite(least) ? `${plural(least + 1, "failure")} are left until the first block.`.replace("1 failure are", "1 failure is") : "no limit counts anything here.");
}

const EFFECTS = {
  counts: (next) => `The next failure counts, and leaves ${plural(next.remaining, "attempt")}.`,
  blocks: (next) => (next.for_ms === null ? "The next failure blocks for good." : `The next failure blocks for ${next.exact ? "" : "at least "}${span(next.for_ms)}.`),
  refused: () => "There is no next failure: attempts are refused.",
  exempt: () => "Failures do not count: the address is known for this user.",
};

function limits(explanation, lengths, params) {
  const list = explanation.limits;
  const section = card("What counts", { class: "limits" });
  if (!list.length) section.append(empty("Nothing counts", "No rule of the policy counts by this alone, or nothing has failed. Rules by user and address count for a pair."));
  for (const limit of list) {
    const where = [limit.user ?? (limit.by_user && !params.user ? "a user" : null), limit.address].filter(Boolean).join(" at ");
    section.append(h("article", { class: `limit ${limit.state}` },
      h("header", {}, h("h3", {}, limit.rule, where && h("small", {}, where)), limit.shadow && h("span", { class: "chip warn" }, "shadow"), h("span", { class: `chip state-${limit.state}` }, limit.state)),
      h("div", { class: "gauge", role: "img", "aria-label": `${limit.usage} of ${limit.limit}` }, limit.limit <= 40
        ? Array.from({ length: limit.limit }, (_, i) => h("i", { class: i < limit.usage ? "on" : "" })) : h("i", { class: "whole" }, h("i", { class: "on", style: { width: `${Math.min(100, (100 * limit.usage) / limit.limit)}%` } }))),
      h("p", {}, `${limit.words[0].toUpperCase()}${limit.words.slice(1)}.`),
      limit.attempts.length > 0 || limit.state === "blocked" ? attemptsChart(limit, lengths.get(limit.rule)) : null,
      h("p", { class: "next muted small" }, EFFECTS[limit.next_failure.effect]?.(limit.next_failure))));
  }
  if (explanation.is_truncated) section.append(h("p", { class: "notice" }, "There are more blocks here than are shown: use the list of blocks with a filter."));
  return section;
}

function access({ decided_by: decides, overruled }) {
  const line = (rule, decisive) => {
    const { field: name, value, user } = condition(rule);
    return h("li", {}, h("span", { class: `chip ${rule.action === "deny" ? "bad" : "ok"}` }, rule.action), h("div", {}, h("a", { href: `#/rules?find=${encodeURIComponent(rule.name)}` }, rule.name), " ", h("span", { class: "muted" }, `${FIELDS[name]} ${value}${user ? `, user ${user}` : ""}`), decisive ? h("b", {}, " decides") : ""));
  };
  return card("Access rules that match", {}, decides || overruled.length ? h("ul", { class: "plain" }, decides && line(decides, true), overruled.map((rule) => line(rule, false)))
    : h("p", { class: "muted small" }, "None: the limits decide. Rules by path or user agent may match a request all the same."));
}

function events(list) {
  return card("Lately", {}, list.length ? h("ul", { class: "plain feed" }, list.map((event) => h("li", {}, h("time", { datetime: event.at, title: exact(Date.parse(event.at)), class: "muted" }, moment(Date.parse(event.at))), h("span", { class: `chip ${tone(event)}` }, eventName(event)), h("span", {}, event.rule ? `${event.rule}: ` : "", eventWords(event)))))
    : h("p", { class: "muted small" }, "No event of this subject is kept. Events are found by name only if users are shown."));
}
