// The frame: pages, theme, search, and the state of the connection and the store.

import { READ_ONLY, operator, status, unattended } from "./api.js";
import { h } from "./dom.js";
import { plural, query, subjectOf, tickAll } from "./format.js";
import { onState, start } from "./live.js";
import * as overview from "./overview.js";
import * as blocks from "./blocks.js";
import * as subject from "./subject.js";
import * as rules from "./rules.js";
import * as policy from "./policy.js";
import * as events from "./events.js";

const PAGES = { overview, blocks, subject, rules, policy, events };
const main = document.getElementById("main");
const element = (id) => document.getElementById(id);

/// After how long a page is tried again that could not be shown, in milliseconds.
const RETRY = 3_000;

let leave = null, current = "";

async function show({ isRetry = false } = {}) {
  const [name, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const page = PAGES[name] ?? overview;
  const params = Object.fromEntries(new URLSearchParams(search));
  leave?.abort();
  leave = new AbortController();
  const { signal } = leave;
  for (const link of element("pages").children) {
    const isHere = link.hash === `#/${name || "overview"}` || (name === "subject" && link.hash === "#/blocks");
    if (isHere) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  document.title = `${page.title(params)} · Login limits`;
  const isNew = current !== "" && current !== name;
  current = name || "overview";
  const heading = h("h1", { tabindex: "-1" }, page.title(params));
  const content = h("div", { class: `page page-${current}` });
  main.replaceChildren(h("div", { class: "page-head" }, heading, h("div", { class: "page-actions" })), content);
  if (isNew) { scrollTo(0, 0); heading.focus({ preventScroll: true }); }
  try {
    const shown = () => page.show({ content, actions: main.querySelector(".page-actions"), params, signal });
    await (isRetry ? unattended(shown) : shown());
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    const isPassing = error.status === 0 || (error.status >= 500 && error.status !== 501);
    content.replaceChildren(failure(error, isPassing));
    if (!isPassing) return;
    // An outage that ends is seen without a click. Who may do what may be unknown too.
    const timer = setInterval(async () => {
      if (document.hidden) return;
      clearInterval(timer);
      await refresh(true);
      if (!signal.aborted) show({ isRetry: true });
    }, RETRY);
    signal.addEventListener("abort", () => clearInterval(timer));
  }
}

function failure(error, isPassing) {
  const title = error.status === 503 ? "The store does not answer" : error.title ?? "This page could not be shown";
  return h("div", { class: "empty bad", role: "alert" }, h("b", {}, title), h("p", {}, error.message),
    isPassing && h("p", { class: "muted" }, "It is tried again every few seconds."),
    h("button", { type: "button", onclick: () => show() }, "Try again"));
}

function setTheme() {
  const isDark = (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const next = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("login-console-theme", next); } catch { /* for this page alone */ }
}

async function refresh(background) {
  let answer;
  try { answer = await status({ background }); } catch (error) {
    if (error.status === 503) element("signs").replaceChildren(h("span", { class: "chip bad", title: error.message }, "The store does not answer"));
    return null;
  }
  element("operator").textContent = operator.name;
  element("role").textContent = operator.mayOperate ? "operate" : "read only";
  element("role").title = operator.mayOperate ? "" : READ_ONLY;
  const signs = [];
  if (answer.store.degraded) {
    signs.push(h("a", { href: "#/overview", class: "chip bad" }, "Store down: decisions without it"));
  } else if (answer.instances === null) {
    // Ahead of the first login that would notice.
    signs.push(h("span", { class: "chip bad" }, "The store does not answer"));
  }
  if (answer.up_to_date < answer.instances) {
    signs.push(h("a", { href: "#/policy", class: "chip warn" }, `Version ${answer.version} on ${answer.up_to_date} of ${plural(answer.instances, "instance")}`));
  }
  element("signs").replaceChildren(...signs);
  return answer;
}

const LIVE = { connecting: "Connecting", live: "Live", lost: "Connection lost" };

element("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
element("theme").addEventListener("click", setTheme);
element("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const found = subjectOf(element("find").value);
  if (Object.keys(found).length) location.hash = `#/subject?${query(found)}`;
});
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select, dialog")) return;
  event.preventDefault();
  element("find").focus();
});
addEventListener("hashchange", () => show());
onState((state) => {
  element("live").dataset.state = state;
  element("live").lastElementChild.textContent = LIVE[state];
});
setInterval(tickAll, 1_000);
setInterval(() => { if (!document.hidden) refresh(true); }, 10_000);

// Controls are drawn by what the operator may do, so that comes first.
const first = await refresh(false);
if (first?.events === false) {
  element("live").lastElementChild.textContent = "No events";
  element("live").title = "The server has no feed: see Server::with_feed.";
} else {
  start();
}
show();
