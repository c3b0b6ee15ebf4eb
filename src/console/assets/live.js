// One stream of server-sent events for the whole page.

import { api, BASE } from "./api.js";

const listeners = new Set();
const watchers = new Set();
let source = null;
let state = "connecting";
let watchdog;

function become(next) {
  if (next === state) return;
  state = next;
  for (const watcher of watchers) watcher(state);
}

function connect() {
  source?.close();
  source = new EventSource(`${BASE}events/live`);
  source.addEventListener("tick", (message) => {
    become("live");
    clearTimeout(watchdog);
    // A tick comes every second: silence is a lost connection that has not noticed yet.
    watchdog = setTimeout(() => { become("lost"); connect(); }, 10_000);
    const tick = JSON.parse(message.data);
    for (const listener of listeners) listener(tick);
  });
  source.addEventListener("error", () => {
    become("lost");
    // The browser retries by itself, except after an answer that is no stream.
    if (source.readyState === EventSource.CLOSED) {
      clearTimeout(watchdog);
      setTimeout(async () => {
        try { await api("status", { background: true }); } catch { /* shown as lost */ }
        connect();
      }, 3_000);
    }
  });
}

export function start() {
  connect();
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
}

/// Calls `listener` with each tick until `signal` is aborted.
export function onTick(listener, signal) {
  listeners.add(listener);
  signal?.addEventListener("abort", () => listeners.delete(listener));
}

export function onState(watcher) {
  watchers.add(watcher);
  watcher(state);
}
