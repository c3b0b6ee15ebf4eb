// What events and rules mean, in words.

import { h } from "./dom.js";
import { count, plural, span } from "./format.js";

export const EVENTS = {
  settled: "Attempt settled",
  refused: "Refused",
  undecided: "Not decided",
  block_began: "Block began",
  block_lifted: "Block ended",
  limit_reached: "Limit reached",
  access_rule_hit: "Access rule",
  store_down: "Store down",
  store_up: "Store up",
  journal_replayed: "Journal replayed",
  document_changed: "Rules changed",
  administered: "Operator acted",
  signal: "Attack signal",
  wrong_block: "Wrong block?",
};

const OUTCOMES = {
  success: "every factor was right",
  failure: "wrong password or code",
  unknown_user: "no such user",
  mfa_pending: "password right, code pending",
  not_an_attempt: "malformed, or the server failed",
};

const SHORT = { success: "Logged in", failure: "Failed", unknown_user: "Failed", mfa_pending: "Second factor", not_an_attempt: "No attempt" };

/// The name of an event in a list.
export const eventName = (event) => (event.event === "settled" ? SHORT[event.outcome] : EVENTS[event.event]) ?? event.event;

const ACTIONS = { unblock: "lifted blocks", forgive: "forgave failures", block: "blocked by hand", forget: "forgot known addresses", note: "wrote a note" };

/// How an event is colored: ok, warn, bad, or nothing.
export function tone(event) {
  switch (event.event) {
    case "settled": return event.outcome === "success" ? "ok" : event.outcome === "failure" || event.outcome === "unknown_user" ? "warn" : "";
    case "refused": return "info";
    case "block_began": case "store_down": case "undecided": case "signal": return "bad";
    case "wrong_block": case "limit_reached": return "warn";
    case "store_up": case "journal_replayed": return "ok";
    case "access_rule_hit": return event.action === "deny" ? "info" : "ok";
    default: return "";
  }
}

const until = (ms) => (ms === null ? "until an operator lifts it" : `for ${span(ms)}`);

/// One event in a sentence.
export function eventWords(event) {
  const shadow = event.shadow ? " (in shadow: admitted nevertheless)" : "";
  switch (event.event) {
    case "settled": return `${event.second_factor ? "Second factor: " : ""}${OUTCOMES[event.outcome] ?? event.outcome}`;
    case "refused":
      return event.reason === "busy" ? `busy: ${event.usage} of ${event.limit} in flight or failed${shadow}`
        : `${event.usage} of ${event.limit} failures, lifts in ${event.lifts_in_ms === null ? "never" : span(event.lifts_in_ms)}${shadow}`;
    case "undecided": return `the store could not decide: ${event.kind}`;
    case "block_began": return `blocked ${until(event.lifts_in_ms)} after ${event.usage} of ${event.limit} failures${shadow}`;
    case "block_lifted": return event.by === "operator" ? `lifted by ${event.author}: ${event.reason}` : "its time was over";
    case "limit_reached": return `the last of ${event.limit} places was taken`;
    case "access_rule_hit": return event.action === "deny" ? "denied" : "allowed";
    case "store_down": return `${event.error}; attempts are decided without it`;
    case "store_up": return `down for ${span(event.down_for_ms)}; ${plural(event.pending, "write")} to replay`;
    case "journal_replayed": return `${plural(event.replayed, "write")} replayed, ${count(event.dropped)} dropped`;
    case "document_changed": return `version ${event.from} → ${event.to} by ${event.author}: ${event.reason}${event.changes?.length ? ` — ${event.changes.join("; ")}` : ""}`;
    case "administered": return `${event.author} ${ACTIONS[event.action] ?? event.action}${event.network ? ` of ${event.network}` : ""}: ${event.reason}`;
    case "signal":
      return event.signal === "many_users" ? `one address fails at about ${count(event.users)} users: credential stuffing or spraying`
        : event.signal === "many_addresses" ? `one user is tried from about ${count(event.addresses)} addresses: a botnet`
        : `${Math.round(event.per_minute)} failures a minute, where ${Math.round(event.baseline)} are usual`;
    case "wrong_block": return event.by === "success" ? "the same user logged in from there soon after" : "an operator lifted it";
    default: return "";
  }
}

/// Where the page of a subject is.
export const subjectLink = ({ address, user, network }) => {
  const values = network ?? (address?.includes("/") ? address : undefined);
  const set = values && !user ? { network: values } : { address: address?.split("/")[0], user };
  const search = new URLSearchParams(Object.entries(set).filter(([, value]) => value));
  return `#/subject?${search}`;
};

/// Users that are shown by a mask or a hash can't be asked for.
export const isName = (user) => Boolean(user) && !user.includes("***") && !user.startsWith("hash:") && !user.startsWith("sealed:");

/// Who an event or a block is about, as links.
export function who({ address, user, by_user }) {
  const parts = [];
  const name = isName(user) ? user : undefined;
  if (user) parts.push(name ? h("a", { href: subjectLink({ address, user }), class: "user" }, user) : h("span", { class: "user" }, user));
  else if (by_user) parts.push(h("span", { class: "user unknown", title: "Users are not shown: see with_user_display" }, "user hidden"));
  if (address) parts.push(h("a", { href: subjectLink({ address }), class: "mono" }, address));
  if (!parts.length) parts.push(h("span", { class: "muted" }, "—"));
  return h("span", { class: "who" }, parts);
}

const KEYS = { address: "address", user: "user", path: "path", "user-agent": "user agent" };
const key = (part) => KEYS[part] ?? (part.startsWith("network/") ? `IPv6 network (/${part.slice(8)})` : part.replace(/^value:/, ""));

/// What a rule of the policy counts by: "user and address".
export const keyWords = (parts) => (parts ?? []).map(key).join(" and ");

export const FIELDS = { network: "Address or network", user: "User", user_keyword: "User contains", user_agent: "User agent contains", path: "Path", path_prefix: "Path begins with" };

/// The condition of an access rule.
export function condition(rule) {
  const name = Object.keys(FIELDS).find((field) => rule[field] !== undefined && rule[field] !== null);
  return { field: name, value: rule[name], user: name === "network" ? rule.user : undefined };
}
