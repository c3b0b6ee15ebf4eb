// The HTTP API, as this console uses it.

import { sessionEnded } from "./dialog.js";

/// Beside the modules, wherever the console is mounted.
export const BASE = new URL("../api/v1/admin/", import.meta.url).pathname;

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered with status ${status}.`);
    this.status = status;
    this.title = body.title ?? "The request failed";
    this.body = body;
  }
}

let isUnattended = false;

/// Makes requests that no operator asked for: all until it ends are background requests.
export async function unattended(work) {
  isUnattended = true;
  try { return await work(); } finally { isUnattended = false; }
}

/// Calls the API and returns the JSON of its answer. `background` requests do not keep a session alive.
export async function api(path, { method = "GET", body, ifMatch, background, signal } = {}) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (ifMatch !== undefined) headers["if-match"] = `"${ifMatch}"`;
  if (background || isUnattended) headers["login-console-background"] = "1";
  let response;
  try {
    response = await fetch(BASE + path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "No connection", detail: "The server can't be reached. Check the connection; nothing is known to be changed." });
  }
  if (response.status === 401) sessionEnded();
  const text = await response.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { /* below */ }
  if (!response.ok) throw new Problem(response.status, value ?? { detail: text.slice(0, 300) });
  return value;
}

export const post = (path, body, options) => api(path, { method: "POST", body, ...options });
export const put = (path, body, options) => api(path, { method: "PUT", body, ...options });

/// Who is logged in, as the server last said.
export const operator = { name: "", roles: [], mayOperate: false };

export async function status(options) {
  const answer = await api("status", options);
  operator.name = answer.operator.name;
  operator.roles = answer.operator.roles;
  operator.mayOperate = operator.roles.includes("operate");
  return answer;
}

export const READ_ONLY = "Your role is read: you can look at everything, and change nothing.";

/// Disables a control for operators who may not use it, and says why.
export function guard(control) {
  if (!operator.mayOperate) {
    control.disabled = true;
    control.title = READ_ONLY;
  }
  return control;
}

export const exportUrl = (filter) => `${BASE}events?${filter}`;
