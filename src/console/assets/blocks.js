// The blocks in force: found, explained, lifted; and blocks by hand.

import { api, guard, post } from "./api.js";
import { attemptsChart } from "./attempts.js";
import { ask, drawer, toast } from "./dialog.js";
import { button, debounce, empty, field, h, render, select } from "./dom.js";
import { count, exact, moment, now, parsePeriod, plural, query, setNow, subjectOf, tickAll } from "./format.js";
import { onTick } from "./live.js";
import { virtualTable } from "./table.js";
import { isName, subjectLink, who } from "./words.js";

export const title = () => "Blocks";

/// More are found by a filter; beyond this, a list is not read by people.
const MOST = 20_000;

const subjectOfBlock = (block) => {
  const user = isName(block.user) ? block.user : undefined;
  if (!block.address) return user && { user };
  return block.address.includes("/") ? { network: block.address } : { address: block.address };
};

const named = (block) => [block.user ?? (block.by_user ? "a user" : ""), block.address].filter(Boolean).join(" at ");

export async function show({ content, actions, params, signal }) {
  const search = h("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false", placeholder: "Address, network or user", value: params.find ?? "", "aria-label": "Filter by address, network or user" });
  const rule = h("select", { id: "rule", "aria-label": "Rule" }, h("option", { value: "" }, "All rules"));
  const state = h("p", { class: "muted count", role: "status" }, "Loading…");
  const lift = guard(button("Unblock selected", () => unblock([...table.selected]), { kind: "danger", symbol: "unblock", id: "unblock-selected" }));
  const selection = h("div", { class: "selection", hidden: true }, h("span", {}), button("Clear", () => table.clear(), { kind: "quiet" }), lift);
  actions.append(guard(button("Block by hand", () => blockByHand().then((done) => done && load()), { kind: "primary", symbol: "block", id: "block" })));

  const table = virtualOf(signal, selection, (block) => why(block, () => load()), (block) => unblock([block.id], named(block)));
  const news = button("", () => load(), { kind: "quiet news", symbol: "refresh", hidden: true });
  const holder = h("div", { class: "holder" }, table.element);
  content.append(h("div", { class: "toolbar" }, search, rule, state, news), selection, holder);

  const counts = await api("block-counts", { signal });
  for (const row of counts.rules) rule.append(h("option", { value: row.rule }, `${row.rule} (${count(row.blocks)})`));
  if (params.rule) rule.value = params.rule;

  let loading = 0;
  async function load() {
    const turn = ++loading;
    news.hidden = true;
    const typed = subjectOf(search.value);
    // The beginning of an address is looked for among what is listed; everything else is asked of the store.
    const begins = typed.user && /^[\d.]+$/.test(typed.user) ? typed.user : null;
    const filter = { rule: rule.value, ...(begins ? {} : typed) };
    let all = [], after, limit = 200;
    try {
      do {
        const page = await api(`blocks?${query({ ...filter, after, limit })}`, { signal });
        if (turn !== loading) return;
        setNow(page.now);
        all = all.concat(page.blocks);
        after = page.next;
        limit = 1_000;
        table.set(begins ? all.filter((block) => block.address?.startsWith(begins)) : all);
        report(after);
        // Between two pages the browser may paint.
        await new Promise((resolve) => setTimeout(resolve));
      } while (after && all.length < MOST);
    } catch (error) {
      if (error.name === "AbortError" || turn !== loading) return;
      table.set([]);
      state.textContent = "";
      holder.replaceChildren(empty("The list can't be read", error.message));
      return;
    }
    report(after);
    const isFiltered = search.value.trim() || rule.value;
    holder.replaceChildren(table.total ? table.element
      : isFiltered ? empty("Nothing matches", "No block in force matches this filter. The page of an address or user shows what counts without blocking, too.",
        typed.address || typed.user || typed.network ? h("a", { href: subjectLink(typed) }, "Explain it") : null)
      : empty("No block is in force", "When a rule's limit is reached, the block is listed here, with the attempts that led to it."));
  }
  function report(after) {
    state.textContent = `${plural(table.total, "block")}${after ? " so far, more are loading" : ""}`;
    if (after && table.total >= MOST) state.textContent = `The first ${count(MOST)} blocks; use the filter to find others`;
  }

  async function unblock(ids, name) {
    const done = await ask({
      title: ids.length === 1 ? "Unblock" : `Unblock ${count(ids.length)}`, confirm: ids.length === 1 ? "Unblock" : `Unblock ${count(ids.length)} blocks`, danger: true,
      intro: `${name ? `${name}: attempts` : "Attempts"} are admitted again at once, on every instance. The failures of this block are cleared, and no others.`,
      run: async (form) => {
        let lifted = 0;
        // The API takes a thousand at a time.
        for (let i = 0; i < ids.length; i += 1_000) lifted += (await post("unblock", { ids: ids.slice(i, i + 1_000), reason: form.get("reason") })).count;
        return { lifted };
      },
    });
    if (!done) return;
    toast(`${plural(done.lifted, "block")} lifted.`, "ok");
    table.clear();
    await load();
  }

  search.addEventListener("input", debounce(300, load));
  rule.addEventListener("change", load);
  let begun = 0;
  onTick((tick) => {
    begun += tick.events.filter((event) => event.event === "block_began").length;
    if (begun) { news.hidden = false; news.lastElementChild.textContent = `${plural(begun, "new block")}: show`; }
  }, signal);
  news.addEventListener("click", () => { begun = 0; });
  await load();
}

function virtualOf(signal, selection, why, unblock) {
  return virtualTable({
    caption: "Blocks in force", signal, id: (block) => block.id, selectable: named, rowClass: (block) => (block.shadow ? "shadow" : ""),
    onselect: (selected) => {
      selection.hidden = selected.size === 0;
      selection.firstElementChild.textContent = `${plural(selected.size, "block")} selected`;
    },
    columns: [
      { key: "who", label: "Who", class: "who-cell", sort: (block) => block.address ?? block.user ?? "", cell: (block) => who(block) },
      { key: "rule", label: "Rule", class: "rule-cell", sort: (block) => block.rule, cell: (block) => [h("span", { class: "chip" }, block.rule), block.shadow && h("span", { class: "chip warn", title: "Refuses nothing" }, "shadow")] },
      { key: "usage", label: "Failures", class: "num", sort: (block) => block.usage, descending: true, cell: (block) => `${block.usage} of ${block.limit}` },
      { key: "since", label: "Began", class: "began", sort: (block) => block.since ?? "", descending: true, cell: (block) => (block.since ? h("time", { datetime: block.since, title: exact(Date.parse(block.since)) }, moment(Date.parse(block.since))) : "—") },
      { key: "lifts", label: "Lifts in", class: "num lifts", sort: (block) => (block.lifts_at ? Date.parse(block.lifts_at) : Infinity), cell: lifts },
      { key: "do", label: "Actions", unseen: true, class: "do", cell: (block) => [button("Why", () => why(block), { kind: "quiet small", symbol: "why", "aria-label": `Why is ${named(block)} blocked?` }), guard(button("Unblock", () => unblock(block), { kind: "quiet small", symbol: "unblock", "aria-label": `Unblock ${named(block)}` }))] },
    ],
  });
}

function lifts(block) {
  if (!block.lifts_at) return h("span", { class: "never" }, "never");
  const at = Date.parse(block.lifts_at), since = block.since ? Date.parse(block.since) : null;
  const element = h("span", { class: "left", data: { lifts: String(at) }, title: exact(at) });
  const holder = h("span", { class: "countdown" }, element, since && h("span", { class: "meter", "aria-hidden": "true" }, h("i", { style: { width: `${Math.max(0, Math.min(100, (100 * (at - now())) / (at - since)))}%` } })));
  tickAll(holder);
  return holder;
}

/// The lengths of the windows of the policy in force, by rule.
export async function windows(signal) {
  const { ruleset } = await api("ruleset", { signal });
  return new Map(ruleset.policy.rules.map((rule) => [rule.name, parsePeriod(rule.within ?? rule.forgotten_after)]));
}

async function why(block, changed) {
  const body = h("div", { class: "drawer-body" }, h("p", { class: "loading" }, "Reading the counters…"));
  const sheet = drawer(named(block), body);
  const subject = subjectOfBlock(block);
  if (!subject) {
    body.replaceChildren(empty("The name is not shown", "This rule counts by user alone, and users are masked or hidden here. Search for the name to see the attempts."));
    return;
  }
  let explanation, lengths;
  try { [explanation, lengths] = await Promise.all([api(`explain?${query(subject)}`), windows()]); } catch (error) {
    body.replaceChildren(empty("It can't be explained now", error.message));
    return;
  }
  const limit = explanation.limits.find((one) => one.id === block.id);
  const others = explanation.limits.filter((one) => one.id !== block.id && one.state !== "clear" && one.state !== "exempt");
  const user = isName(block.user) ? block.user : undefined;
  render(body,
    limit ? h("div", {}, h("p", { class: "lead" }, `Rule ${limit.rule}: ${limit.words}.`), attemptsChart(limit, lengths.get(limit.rule), true))
      : empty("Not blocked anymore", "The block has been lifted, or its time was over, since the list was read."),
    limit && h("dl", { class: "facts" }, h("dt", {}, "Began"), h("dd", {}, limit.since ? exact(Date.parse(limit.since)) : "not kept"),
      h("dt", {}, "Lifts"), h("dd", {}, limit.lifts_at ? exact(Date.parse(limit.lifts_at)) : "when an operator lifts it"),
      h("dt", {}, "Policy"), h("dd", {}, `version ${explanation.version}`)),
    explanation.decided_by && h("p", { class: "notice" }, `Ahead of the limits, the access rule ${explanation.decided_by.name} ${explanation.decided_by.action === "deny" ? "denies" : "allows"} it.`),
    others.length > 0 && h("div", {}, h("h3", {}, "Also in the way"), h("ul", {}, others.map((one) => h("li", {}, `${one.rule}${one.user ? `, ${one.user}` : ""}: ${one.words}`)))),
    h("footer", {}, h("a", { href: subjectLink({ address: block.address, user }), class: "button" }, "Everything about it"),
      limit && guard(button("Unblock", async () => {
        const done = await ask({ title: "Unblock", confirm: "Unblock", danger: true, intro: `${named(block)}: attempts are admitted again at once, on every instance.`, run: (form) => post("unblock", { id: block.id, reason: form.get("reason") }) });
        if (!done) return;
        toast(`${plural(done.count, "block")} lifted.`, "ok");
        sheet.close();
        changed();
      }, { kind: "danger", symbol: "unblock" }))));
}

/// Blocks an address, a network or a user by hand. Resolves to what was done, or null. Addresses and users have a field
/// each: a user may be named like a network, and must not be taken for one.
export function blockByHand(known = {}) {
  const where = h("input", { name: "where", autocomplete: "off", spellcheck: "false", value: known.network ?? known.address ?? "", autofocus: true });
  const user = h("input", { name: "user", autocomplete: "off", spellcheck: "false", value: known.user ?? "" });
  const lasts = select([["1 hour", "1 hour"], ["1 day", "1 day"], ["7 days", "7 days"], ["30 days", "30 days"], ["forever", "Until it is removed"]], "1 day", { name: "for" });
  return ask({
    title: "Block by hand", confirm: "Block", danger: true, intro: "Denied ahead of all limits, on every instance, within a second. It is listed under Rules and can be removed there.",
    fields: [field("Address or network", where, "Such as 192.0.2.1 or 2001:db8::/48. Empty: the user, wherever attempts come from."), field("User", user, "Empty: everybody at the address or in the network."), field("For", lasts)],
    run: async (form) => {
      const at = form.get("where").trim(), name = form.get("user");
      if (!at && !name.trim()) throw new Error("Name an address, a network or a user.");
      const who = { [at.includes("/") ? "network" : "address"]: at || undefined, user: name.trim() ? name : undefined };
      const done = await post("block", { ...who, for: form.get("for"), reason: form.get("reason") });
      toast(`Blocked by the rule ${done.rule}.`, "ok");
      return done;
    },
  });
}
