// A rule of the policy as a form.

import { button, field, h, select } from "./dom.js";
import { keyWords } from "./words.js";

const ALGORITHMS = [["sliding-window", "Sliding window"], ["sliding-counter", "Sliding counter"], ["token-bucket", "Token bucket"], ["backoff", "Back-off"]];
const PERIODS = ["1 minute", "5 minutes", "15 minutes", "1 hour", "6 hours", "1 day", "7 days", "30 days", "forever"];

const asList = (value) => (Array.isArray(value) ? value.join(", ") : value ?? "");
const ofList = (text) => { const parts = text.split(",").map((part) => part.trim()).filter(Boolean); return parts.length > 1 ? parts : parts[0]; };

export const periods = () => h("datalist", { id: "periods" }, PERIODS.map((value) => h("option", { value })));

/// `where` is how errors of the server name the field.
const place = (input, where) => { input.dataset.where = where; return input; };

/// `words` is what the server makes of the rule. `changed()` is called when `rule` has been edited, with true if its
/// fields are others now.
export function ruleForm(rule, { disabled, changed, remove }) {
  const text = (name, properties = {}) => place(h("input", { value: asList(rule[name]), disabled, autocomplete: "off", spellcheck: "false", list: properties.list, title: properties.title, oninput: (event) => {
    const value = event.target.value.trim();
    if (!value) delete rule[name];
    else rule[name] = properties.read ? properties.read(value) : value;
    changed();
  } }), `${rule.name}.${name}`);
  const number = (value) => (/^\d+$/.test(value) ? Number(value) : value);
  const check = (name, label, hint, isSet = Boolean(rule[name])) => {
    const box = place(h("input", { type: "checkbox", checked: isSet, disabled, onchange: () => { rule[name] = box.checked; changed(); } }), `${rule.name}.${name}`);
    return h("label", { class: "check-line", title: hint }, box, label);
  };
  const algorithm = place(select(ALGORITHMS, rule.algorithm ?? "sliding-window", { disabled, onchange: () => {
    const wasBackoff = rule.algorithm === "backoff";
    rule.algorithm = algorithm.value;
    if (rule.algorithm === "backoff") for (const name of ["limit", "within", "block", "again_within"]) delete rule[name];
    else if (wasBackoff) { for (const name of ["waits", "jitter", "forgotten_after"]) delete rule[name]; Object.assign(rule, { limit: 5, within: "1 day", block: "1 day" }); }
    changed(true);
  } }), `${rule.name}.algorithm`);

  const fields = rule.algorithm === "backoff"
    ? [field("Waits", text("waits", { read: (value) => [ofList(value)].flat() }), "After each failure, the last one repeated."), field("Jitter, %", text("jitter", { read: number })), field("Forgotten after", text("forgotten_after", { list: "periods" }))]
    : [field("Failures", text("limit", { read: number })), field("Within", text("within", { list: "periods" })), field("Block", text("block", { list: "periods", read: ofList, title: "A length, none, or several with commas: blocks that grow" }), Array.isArray(rule.block) ? "Blocks that grow." : ""),
      Array.isArray(rule.block) && field("Again within", text("again_within", { list: "periods" }), "A block that follows so soon is the next longer one.")];
  return h("div", { class: "rule-form" },
    h("div", { class: "row" }, field("Algorithm", algorithm), ...fields.filter(Boolean)),
    h("div", { class: "row checks" }, check("enabled", "Enabled", "Counts and refuses", rule.enabled !== false), check("shadow", "Shadow", "Counts, and refuses nothing"),
      rule.key?.includes("user") && !rule.key.includes("address") && check("exempt_known_addresses", "Exempt known addresses", "The owner's own addresses are never refused by it"),
      button("Remove", remove, { kind: "quiet small", disabled, "aria-label": `Remove the rule ${rule.name}` })));
}

export function ruleCard(rule, options) {
  const words = h("p", { class: "words" });
  const form = h("div", {}, ruleForm(rule, { ...options, changed: (rebuild) => { if (rebuild) again(); options.changed(); } }));
  const again = () => form.replaceChildren(ruleForm(rule, { ...options, changed: (rebuild) => { if (rebuild) again(); options.changed(); } }));
  const states = h("span", { class: "states" });
  const element = h("article", { class: "rule", "aria-label": `Rule ${rule.name}` },
    h("header", {}, h("h3", {}, rule.name), h("small", { class: "muted" }, `counts by ${keyWords(rule.key)}`), states), words, form);
  return {
    element, rule,
    show(text, isChanged) {
      words.textContent = text;
      element.classList.toggle("changed", isChanged);
      element.classList.toggle("off", rule.enabled === false);
      states.replaceChildren(...[isChanged && h("span", { class: "chip accent" }, "changed"), rule.enabled === false && h("span", { class: "chip" }, "off"), rule.shadow && h("span", { class: "chip warn" }, "shadow")].filter(Boolean));
    },
  };
}

/// What holds for all rules: leases, IPv6 networks, known addresses.
export function commonForm(policy, { disabled, changed }) {
  const input = (value, where, set) => place(h("input", { value: value ?? "", disabled, autocomplete: "off", list: where.endsWith("prefix") || where.endsWith("newest") ? null : "periods", oninput: (event) => { set(event.target.value.trim()); changed(); } }), where);
  const number = (value) => (/^\d+$/.test(value) ? Number(value) : value);
  const known = policy.known_addresses ?? {};
  return h("div", { class: "row" },
    field("Lease", input(policy.lease, "lease", (value) => { policy.lease = value; }), "An attempt that is not settled by then is a failure."),
    field("IPv6 prefix", input(policy.ipv6_prefix, "ipv6_prefix", (value) => { policy.ipv6_prefix = number(value); }), "Bits that make one client."),
    field("Known addresses", input(known.newest, "known_addresses.newest", (value) => { policy.known_addresses = { ...policy.known_addresses, newest: number(value) }; }), "The newest that are kept of a user."),
    field("Kept for", input(known.kept_for, "known_addresses.kept_for", (value) => { policy.known_addresses = { ...policy.known_addresses, kept_for: value }; })));
}
