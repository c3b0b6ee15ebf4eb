// One stream of server-sent events for the whole page.

import { api, BASE } from "./api.js";

/// How many events one frame shows at most. Others are counted as left out.
const PER_FRAME = 50;

const listeners = new Set();
const watchers = new Set();
let source = null;
let state = "connecting";
let watchdog;
let pending = null;

function become(next) {
  if (next === state) return;
  state = next;
  for (const watcher of watchers) watcher(state);
}

/// Ticks that arrive together, as after a pause of the connection or of the tab, are one: a frame draws once.
function add(tick) {
  const isFirst = !pending;
  pending ??= { minutes: new Map(), events: [], omitted: 0 };
  if (tick.minute) pending.minutes.set(tick.minute.at, tick.minute);
  const events = [...pending.events, ...tick.events];
  pending.events = events.slice(-PER_FRAME);
  pending.omitted += tick.omitted + events.length - pending.events.length;
  if (!isFirst) return;
  // A page that is hidden has no frames.
  if (document.hidden) setTimeout(deliver); else requestAnimationFrame(deliver);
}

function deliver() {
  const tick = { ...pending, minutes: [...pending.minutes.values()] };
  pending = null;
  for (const listener of listeners) listener(tick);
}

function connect() {
  source?.close();
  source = new EventSource(`${BASE}events/live`);
  source.addEventListener("tick", (message) => {
    become("live");
    clearTimeout(watchdog);
    // A tick comes every second: silence is a lost connection that has not noticed yet.
    watchdog = setTimeout(() => { become("lost"); connect(); }, 10_000);
    add(JSON.parse(message.data));
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

/// Calls `listener` with what the ticks since the last frame add up to, until `signal` is aborted: the last state of each
/// minute, the newest events, and how many others there were.
export function onTick(listener, signal) {
  listeners.add(listener);
  signal?.addEventListener("abort", () => listeners.delete(listener));
}

export function onState(watcher) {
  watchers.add(watcher);
  watcher(state);
}
