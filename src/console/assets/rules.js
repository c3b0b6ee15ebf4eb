// Allow and deny lists: who passes or is refused ahead of the limits.

import { api, guard, post, put } from "./api.js";
import { ask, toast } from "./dialog.js";
import { button, card, debounce, empty, field, h, iconButton, mark, select } from "./dom.js";
import { ends, exact, now, plural } from "./format.js";
import { virtualTable } from "./table.js";
import { condition, FIELDS } from "./words.js";

export const title = () => "Rules";

const HINTS = { network: "192.0.2.0/24, 2001:db8::/48 or one address", user: "The name, in any spelling", user_keyword: "A part of the name, in any case", user_agent: "A part of the header, in any case", path: "/login", path_prefix: "/admin" };
const EXPIRIES = [["", "Never"], ["3600000", "In 1 hour"], ["86400000", "In 1 day"], ["604800000", "In 7 days"], ["2592000000", "In 30 days"], ["at", "At a time…"]];

export async function show({ content, actions, params, signal }) {
  let version, rules = [];
  actions.append(guard(button("New rule", () => edit(), { kind: "primary", symbol: "plus", id: "new-rule" })));
  const search = h("input", { type: "search", placeholder: "Name, value, author or note", "aria-label": "Filter the rules", value: params.find ?? "", spellcheck: "false" });
  const action = select([["", "Allow and deny"], ["allow", "Allow"], ["deny", "Deny"]], "", { "aria-label": "Action" });
  const state = h("p", { class: "muted count", role: "status" });
  const table = virtualTable({
    caption: "Access rules", signal, id: (rule) => rule.name, rowClass: (rule) => (isOver(rule) ? "over" : ""), cardHeight: 118,
    columns: [
      { key: "name", label: "Rule", class: "name-cell", sort: (rule) => rule.name, cell: (rule) => [h("span", { class: `chip ${rule.action === "deny" ? "bad" : "ok"}` }, rule.action), h("b", { class: "rule-name", title: rule.name }, rule.name)] },
      { key: "if", label: "Matches", class: "if-cell", sort: (rule) => condition(rule).value, cell: (rule) => { const { field: name, value, user } = condition(rule); return [h("span", { class: "muted" }, `${FIELDS[name]} `), h("span", { class: "mono" }, value), user ? h("span", {}, ` and user ${user}`) : "", rule.forgeable ? h("span", { class: "chip warn", title: "Clients choose this value, so anybody can pass by it" }, "forgeable") : ""]; } },
      { key: "expires", label: "Expires", class: "expires-cell", sort: (rule) => rule.expires ?? "9", cell: (rule) => (rule.expires ? h("time", { datetime: rule.expires, title: exact(Date.parse(rule.expires)) }, isOver(rule) ? "expired" : ends(Date.parse(rule.expires))) : h("span", { class: "muted" }, "never")) },
      { key: "note", label: "Note", class: "note-cell", sort: (rule) => rule.author ?? "", cell: (rule) => [h("span", { title: rule.note ?? "" }, rule.note ?? ""), rule.author ? h("small", { class: "muted" }, ` ${rule.author}`) : ""] },
      { key: "do", label: "Actions", unseen: true, class: "do", cell: (rule) => [guard(iconButton(`Edit ${rule.name}`, "edit", () => edit(rule))), guard(iconButton(`Remove ${rule.name}`, "trash", () => remove(rule)))] },
    ],
  });
  const holder = h("div", { class: "holder" });
  content.append(tester(), h("div", { class: "toolbar" }, search, action, state), holder);

  const isOver = (rule) => rule.expires && Date.parse(rule.expires) <= now();

  function filter() {
    const typed = search.value.trim().toLowerCase();
    const matches = rules.filter((rule) => (!action.value || rule.action === action.value) && (!typed || JSON.stringify(rule).toLowerCase().includes(typed)));
    table.set(matches);
    state.textContent = `${plural(matches.length, "rule")}, version ${version}`;
    holder.replaceChildren(matches.length ? table.element : rules.length ? empty("Nothing matches", "No rule has this text.")
      : empty("No rules yet", "Limits decide about everybody. Allow the office or a monitor, deny a network or a scanner: rules decide ahead of the limits."));
  }

  async function load() {
    const answer = await api("ruleset", { signal });
    version = answer.version;
    rules = answer.ruleset.access;
    filter();
  }

  async function remove(rule) {
    const done = await ask({ title: `Remove ${rule.name}`, confirm: "Remove", danger: true, intro: `${rule.action === "deny" ? "It denies" : "It allows"} ${condition(rule).value}. Without it the limits decide, on every instance within a second.`,
      run: (form) => api(`access-rules/${encodeURIComponent(rule.name)}`, { method: "DELETE", body: { reason: form.get("reason") } }).then(() => true) });
    if (done) { toast(`Removed ${rule.name}.`, "ok"); load(); }
  }

  async function edit(rule) {
    const done = await ruleDialog(rule);
    if (done) { toast(`${rule ? "Changed" : "Added"} ${done.name}.`, "ok"); load(); }
  }

  search.addEventListener("input", debounce(120, filter));
  action.addEventListener("change", filter);
  await load();
}

/// What an address, a user or a user agent meets, with the rules as they are or with one more.
function tester() {
  const inputs = { address: "Address", user: "User", user_agent: "User agent", path: "Path" };
  const result = h("p", { class: "try-result", role: "status" }, "Which rule decides? Type what a request would have.");
  const fields = Object.entries(inputs).map(([name, label]) => h("input", { name, "aria-label": label, placeholder: label, autocomplete: "off", spellcheck: "false" }));
  const go = debounce(250, async () => {
    const values = filled(fields);
    if (!Object.keys(values).length) { result.textContent = "Which rule decides? Type what a request would have."; return; }
    try { result.replaceChildren(...verdict(await post("access-rules/try", values))); } catch (error) { result.textContent = error.message; }
  });
  return card("Try a request", { class: "tester" }, h("form", { class: "try", onsubmit: (event) => event.preventDefault(), oninput: go }, fields), result);
}

const filled = (inputs) => Object.fromEntries(inputs.filter((input) => input.value.trim()).map((input) => [input.name, input.value.trim()]));

function verdict({ decided_by: rule, overruled = [] }) {
  const rest = overruled.length ? ` Overruled: ${overruled.map((one) => one.name).join(", ")}.` : "";
  if (!rule) return [h("b", {}, "The limits decide."), rest];
  return [h("b", { class: rule.action === "deny" ? "bad-text" : "ok-text" }, rule.action === "deny" ? "Denied" : "Allowed"), ` by ${rule.name}.${rest}`];
}

/// The form of a rule, validated and tried as it is typed. Resolves to the rule, or null.
function ruleDialog(rule) {
  const known = rule ? condition(rule) : { field: "network" };
  const action = select([["deny", "Deny"], ["allow", "Allow"]], rule?.action ?? "deny", { name: "action" });
  const kind = select(Object.entries(FIELDS), known.field, { name: "field" });
  const value = h("input", { name: "value", required: true, autocomplete: "off", spellcheck: "false", value: known.value ?? "", autofocus: true });
  const user = h("input", { name: "user", autocomplete: "off", spellcheck: "false", value: known.user ?? "" });
  const name = h("input", { name: "name", required: true, autocomplete: "off", spellcheck: "false", value: rule?.name ?? "", readonly: Boolean(rule) });
  const expiry = select(rule?.expires ? [["keep", `At ${exact(Date.parse(rule.expires))}`], ...EXPIRIES] : EXPIRIES, rule?.expires ? "keep" : "", { name: "expiry" });
  const at = h("input", { type: "datetime-local", name: "at", "aria-label": "Expires at" });
  const forgeable = h("input", { type: "checkbox", id: "forgeable", name: "forgeable", checked: Boolean(rule?.forgeable) });
  const tries = ["address", "user", "user_agent"].map((one) => h("input", { name: `try_${one}`, "aria-label": `Try ${one.replace("_", " ")}`, placeholder: one.replace("_", " "), autocomplete: "off", spellcheck: "false" }));
  const tried = h("p", { class: "try-result small", role: "status" }, "Try it before it is saved: what would a request meet?");
  const userField = field("Only this user", user, "Optional: the rule is for this user at the network.");
  const forgeLine = h("label", { class: "check-line", for: "forgeable" }, forgeable, "Clients choose this value, and may pass by it all the same");

  const candidate = () => {
    const ms = Number(expiry.value);
    const expires = expiry.value === "keep" ? rule.expires : expiry.value === "at" ? at.value && new Date(at.value).toISOString() : ms ? new Date(now() + ms).toISOString() : undefined;
    return { name: name.value.trim(), action: action.value, [kind.value]: value.value.trim(), ...(kind.value === "network" && user.value.trim() ? { user: user.value.trim() } : {}),
      ...(action.value === "allow" && forgeable.checked ? { forgeable: true } : {}), ...(expires ? { expires } : {}) };
  };
  const validate = debounce(200, async () => {
    if (!value.value.trim()) return;
    const draft = candidate();
    const values = Object.fromEntries(tries.filter((input) => input.value.trim()).map((input) => [input.name.slice(4), input.value.trim()]));
    try {
      const answer = await post("access-rules/try", { ...values, rule: { ...draft, name: draft.name || "new" } });
      mark(value, null);
      tried.replaceChildren(...(Object.keys(values).length ? verdict(answer) : [h("span", { class: "ok-text" }, "Valid.")]));
    } catch (error) { mark(value, error.message); }
  });
  const adapt = () => {
    mark(value, null);
    document.getElementById(`${value.id}-hint`).textContent = HINTS[kind.value];
    document.getElementById(`${value.id}-hint`).dataset.hint = HINTS[kind.value];
    userField.hidden = kind.value !== "network";
    forgeLine.hidden = action.value !== "allow" || !["user_agent", "path", "path_prefix", "user", "user_keyword"].includes(kind.value);
    at.hidden = expiry.value !== "at";
  };
  return ask({
    title: rule ? `Change ${rule.name}` : "New rule", confirm: rule ? "Save" : "Add", wide: true,
    fields: [h("div", { class: "row" }, field("Action", action), field("If", kind), field("Value", value, HINTS[known.field])), h("div", { class: "row" }, userField, field("Name", name, "Names the rule in events and metrics.")),
      h("div", { class: "row" }, field("Expires", expiry), at), forgeLine, h("fieldset", { class: "try" }, h("legend", {}, "Try"), tries, tried)],
    onopen: (_, form) => { form.addEventListener("input", () => { adapt(); validate(); }); adapt(); },
    run: async (form) => {
      const { name: _, ...draft } = candidate();
      await put(`access-rules/${encodeURIComponent(name.value.trim())}`, { ...draft, reason: form.get("reason") });
      return { name: name.value.trim() };
    },
  });
}
