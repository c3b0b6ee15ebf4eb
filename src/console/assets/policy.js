// The policy: each rule in words and as a form, tried on what was recorded, and put in force.

import { api, guard, operator, post, put, READ_ONLY } from "./api.js";
import { ask, toast } from "./dialog.js";
import { button, card, debounce, empty, field, h, iconButton, mark, render, select } from "./dom.js";
import { ago, exact, plural } from "./format.js";
import { commonForm, periods, ruleCard } from "./policy-form.js";
import { preview } from "./policy-preview.js";

export const title = () => "Policy";

const copy = (value) => JSON.parse(JSON.stringify(value));
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export async function show({ content, actions, signal }) {
  let current, draft, cards = [], isValid = true;
  const disabled = !operator.mayOperate;
  const rules = h("div", { class: "rules" }), common = h("div", {}), trial = h("div", {});
  const panel = card("Draft", { class: "draft" }), fleet = card("Instances", { class: "fleet" }), past = card("History", { class: "history" });
  const differences = h("div", { role: "status" }), result = h("div", { class: "preview-holder" });
  const apply = guard(button("Apply…", () => putInForce(), { kind: "primary", id: "apply" }));
  const tryIt = button("Preview by replay", replay, { id: "preview" });
  const reset = button("Discard", () => load(), { kind: "quiet", id: "discard" });
  panel.append(differences, h("div", { class: "buttons" }, tryIt, apply, reset));
  if (disabled) content.append(h("p", { class: "notice" }, READ_ONLY));
  actions.append(guard(button("Add a rule", addRule, { symbol: "plus" })));
  content.append(periods(), trial, h("div", { class: "grid-policy" },
    h("div", { class: "column" }, result, h("h2", { class: "hidden" }, "Rules"), rules, card("For all rules", { class: "common" }, common)), h("div", { class: "column side" }, panel, fleet, past)));

  async function load() {
    current = await api("ruleset", { signal });
    draft = copy(current.ruleset);
    build();
    result.replaceChildren();
    await Promise.all([check(), watch(true), history()]);
  }

  function build() {
    cards = draft.policy.rules.map((rule) => ruleCard(rule, { disabled, changed: soon, remove: () => { draft.policy.rules = draft.policy.rules.filter((one) => one !== rule); build(); soon(); } }));
    rules.replaceChildren(...cards.map((one) => one.element));
    common.replaceChildren(commonForm(draft.policy, { disabled, changed: soon }));
    trial.replaceChildren(...canary());
  }

  const isChanged = () => !same(draft, current.ruleset);

  async function check() {
    const answer = await post("ruleset/check", { ruleset: draft }, { signal, background: true });
    isValid = answer.valid;
    const words = new Map(answer.words.map((one) => [one.rule, one.words]));
    const before = new Map(current.ruleset.policy.rules.map((rule) => [rule.name, rule]));
    for (const one of cards) one.show(words.get(one.rule.name) ?? "", !same(one.rule, before.get(one.rule.name)));
    for (const input of content.querySelectorAll("[data-where]")) mark(input, null);
    const lines = answer.differences;
    if (!answer.valid) {
      const { where, reason } = answer.error;
      // A value that can't be read at all is not located: it is the one that was typed last.
      const inputs = [...content.querySelectorAll("[data-where]")];
      const input = where ? inputs.find((one) => where.endsWith(one.dataset.where)) : inputs.find((one) => one === document.activeElement);
      if (input) mark(input, reason);
      differences.replaceChildren(h("p", { class: "error" }, where && h("b", {}, `${where}: `), reason));
    } else {
      render(differences, lines.length ? h("ul", { class: "differences" }, lines.map(difference))
        : h("p", { class: "muted" }, `As in force: version ${current.version}${current.author ? `, by ${current.author}` : ", as the process was started"}. Edit a rule to see what is different.`),
      answer.findings.length > 0 && h("details", { class: "findings muted small" }, h("summary", {}, `${plural(answer.findings.length, "remark")} by NIST, PCI DSS and OWASP`), h("ul", {}, answer.findings.map((text) => h("li", {}, text)))));
    }
    apply.disabled = disabled || !isValid || !isChanged();
    tryIt.disabled = !isValid;
    reset.hidden = !isChanged();
  }
  const soon = debounce(200, () => check().catch((error) => { if (error.name !== "AbortError") differences.replaceChildren(h("p", { class: "error" }, error.message)); }));

  async function replay() {
    tryIt.disabled = true;
    result.replaceChildren(h("p", { class: "loading" }, "Replaying…"));
    try {
      const report = await post("ruleset/preview", { ruleset: draft }, { signal });
      const shown = card("Preview by replay", {}, iconButton("Close the preview", "close", () => result.replaceChildren()), preview(report));
      result.replaceChildren(shown);
      shown.scrollIntoView({ block: "start" });
    } catch (error) { result.replaceChildren(h("p", { class: "error" }, error.message)); }
    tryIt.disabled = false;
  }

  /// Writes a ruleset as the next version, and reports a conflict with what another operator has changed.
  async function write(ruleset, reason) {
    try { return await put("ruleset", { ruleset, reason }, { ifMatch: current.version }); } catch (error) {
      const conflict = error.body?.conflict;
      if (conflict) error.message = `${conflict.author} was faster: version ${conflict.version}, “${conflict.reason}”. ${(conflict.differences ?? []).join("; ")}. Discard the draft to see it, and apply your change again.`;
      throw error;
    }
  }

  async function putInForce() {
    const scope = select([["all", "All addresses"], ["canary", "A share of the addresses, as a canary"]], "all", { name: "scope" });
    const share = h("input", { name: "share", value: "5", inputmode: "decimal" });
    const shareField = field("Percent of the addresses", share, "The same addresses on every instance, chosen by a secret hash. All others stay under the version in force.");
    shareField.hidden = true;
    scope.addEventListener("change", () => { shareField.hidden = scope.value !== "canary"; });
    const done = await ask({ title: "Apply the draft", confirm: "Apply", intro: "Attempts under way finish under the policy that they began with.", fields: [field("For", scope), shareField],
      run: (form) => {
        const ruleset = scope.value === "all" ? draft : { ...copy(current.ruleset), canary: { share: Number(share.value), policy: draft.policy } };
        return write(ruleset, form.get("reason"));
      } });
    if (done) await arrived(done.version);
  }

  async function arrived(version) {
    toast(`Version ${version} is written.`, "ok");
    await load();
    arrive();
  }

  /// What is being tried on a share of the addresses, and how it ends.
  function canary() {
    const tried = current.ruleset.canary;
    if (!tried) return [];
    const end = (keep, title, intro) => guard(button(title, async () => {
      const ruleset = copy(current.ruleset);
      if (keep) ruleset.policy = ruleset.canary.policy;
      delete ruleset.canary;
      const done = await ask({ title, confirm: title, intro, run: (form) => write(ruleset, form.get("reason")) });
      if (done) await arrived(done.version);
    }, { kind: keep ? "primary" : "" }));
    const grow = guard(button("Change the share", async () => {
      const share = h("input", { name: "share", value: String(tried.share), inputmode: "decimal" });
      const done = await ask({ title: "Change the share", confirm: "Change", fields: [field("Percent of the addresses", share, "Addresses that are under the canary stay there if the share grows.")],
        run: (form) => write({ ...copy(current.ruleset), canary: { ...copy(tried), share: Number(share.value) } }, form.get("reason")) });
      if (done) await arrived(done.version);
    }));
    const lines = h("ul", { class: "differences" });
    post("ruleset/check", { ruleset: { ...copy(current.ruleset), policy: tried.policy, canary: undefined } }, { signal, background: true })
      .then((answer) => lines.replaceChildren(...(answer.differences ?? []).filter((line) => line.startsWith("policy")).map(difference))).catch(() => {});
    return [card("Canary", { class: "canary" }, h("p", {}, h("b", {}, `${tried.share} % of the addresses`), " are under another policy:"), lines,
      h("div", { class: "buttons" }, end(true, "Apply to all", "The canary's policy applies to all addresses."), grow, end(false, "End the trial", "All addresses are under the policy below.")))];
  }

  let arriving = 0;
  /// Watches a new version arrive, until it is everywhere.
  function arrive() {
    const turn = ++arriving;
    const look = async () => {
      if (signal.aborted || turn !== arriving) return;
      const isThere = await watch(true).catch(() => false);
      if (!isThere) setTimeout(look, 700);
    };
    look();
  }

  async function watch(background) {
    const answer = await api("instances", { signal, background });
    const list = answer.instances;
    const there = list.filter((one) => one.version >= current.version).length;
    render(fleet, fleet.querySelector("h2"), list.length ? h("div", {}, h("p", { role: "status" }, h("b", {}, `${there} of ${plural(list.length, "instance")}`), ` ${there === 1 ? "enforces" : "enforce"} version ${current.version}.`),
      h("ul", { class: "instances" }, list.map((one) => h("li", { class: one.version >= current.version ? "ok" : "warn", title: one.problem ?? `Started ${exact(Date.parse(one.started))}, software ${one.software}` },
        h("span", { class: "mono" }, one.id.slice(0, 13)), h("span", {}, `v${one.version}`), one.problem ? h("span", { class: "chip bad" }, "problem") : ""))))
      : h("p", { class: "muted small" }, "No instance has reported itself: the limiter is not live, see LoginLimiter::live."));
    return there === list.length;
  }

  async function history() {
    const answer = await api("ruleset/history", { signal });
    const list = answer.versions.slice(0, 20);
    render(past, past.querySelector("h2"), list.length ? h("ol", { class: "versions" }, list.map((one) => {
      const isHere = one.version === current.version;
      const lines = h("ul", { class: "differences" });
      const compare = h("details", { ontoggle: async () => {
        if (!compare.open || lines.childElementCount) return;
        const found = await post("ruleset/check", { ruleset: one.ruleset }, { signal }).catch((error) => ({ differences: [error.message] }));
        lines.replaceChildren(...(found.differences?.length ? found.differences.map(difference) : [h("li", {}, "Nothing: it is the same.")]));
      } }, h("summary", {}, "What going back changes"), lines);
      return h("li", {}, h("div", {}, h("b", {}, `Version ${one.version}`), isHere ? h("span", { class: "chip accent" }, "in force") : "", h("p", {}, one.reason), h("small", { class: "muted", title: exact(Date.parse(one.at)) }, `${one.author}, ${ago(Date.parse(one.at))}`), !isHere && compare),
        !isHere && guard(button("Roll back", () => rollBack(one), { kind: "quiet small", symbol: "back", "aria-label": `Roll back to version ${one.version}` })));
    })) : empty("No versions", "The policy is as the process was started with. The first change is version 1."));
  }

  async function rollBack(to) {
    const done = await ask({ title: `Roll back to version ${to.version}`, confirm: "Roll back", danger: true, intro: "Writes its policy again, as a new version. Access rules stay as they are: they were changed for other reasons.",
      run: (form) => post("ruleset/rollback", { to: to.version, reason: form.get("reason") }, { ifMatch: current.version }) });
    if (done) await arrived(done.version);
  }

  async function addRule() {
    const name = h("input", { name: "name", required: true, autocomplete: "off", autofocus: true });
    const key = select([["address", "Address"], ["user,address", "User and address"], ["user", "User, over all addresses"], ["network/56", "IPv6 network /56"], ["network/48", "IPv6 network /48"], ["address,path", "Address and path"], ["address,user-agent", "Address and user agent"]], "user,address", { name: "key" });
    const added = await ask({ title: "Add a rule", confirm: "Add to the draft", reason: null, intro: "It is part of the draft until that is applied. Try it in shadow first.", fields: [field("Name", name, "Such as office-hours. account and second-factor are known names."), field("Counts by", key)],
      run: async () => {
        if (draft.policy.rules.some((rule) => rule.name === name.value.trim())) throw new Error("There is a rule of this name.");
        return { name: name.value.trim(), key: key.value.split(","), limit: 20, within: "1 day", block: "1 day", enabled: true, shadow: true };
      } });
    if (!added) return;
    draft.policy.rules.push(added);
    build();
    soon();
    cards.at(-1).element.scrollIntoView({ block: "center" });
    cards.at(-1).element.querySelector("input")?.focus();
  }

  await load();
  const timer = setInterval(() => { if (!document.hidden) watch(true).catch(() => {}); }, 5_000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/// `policy.rules.user-address.limit: 5 → 3`, with the place apart from the change.
function difference(line) {
  const at = line.indexOf(": ");
  if (at < 0) return h("li", {}, line);
  return h("li", {}, h("span", { class: "place" }, line.slice(0, at).replace(/^policy\.(rules\.)?/, "")), h("span", { class: "change" }, line.slice(at + 2)));
}
