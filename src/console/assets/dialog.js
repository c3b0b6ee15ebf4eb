// Dialogs, the drawer and short messages.

import { button, field, h, iconButton } from "./dom.js";

/// A short message that a screen reader reads too.
export function toast(text, kind = "") {
  const message = h("p", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(message);
  setTimeout(() => message.remove(), kind === "bad" ? 12_000 : 6_000);
}

function open(dialog) {
  // Back to where the operator was; if that is gone, to the content.
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    (before?.isConnected ? before : document.getElementById("main")).focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/// Asks for what an action needs, runs it, and stays open with the error if it fails.
/// `fields` are elements; `run(form)` returns what the promise resolves to. Null if it was canceled.
export function ask({ title, intro, fields = [], reason = "Reason", hint = "Shown in the audit, with your name.", confirm, danger, run, onopen, wide }) {
  return new Promise((resolve) => {
    let result = null;
    const error = h("p", { class: "error", role: "alert" });
    const why = reason && h("input", { name: "reason", required: true, maxlength: "1000", autocomplete: "off" });
    const go = h("button", { class: danger ? "danger" : "primary" }, confirm);
    const form = h("form", { method: "dialog" },
      h("header", {}, h("h2", { id: "dialog-title" }, title), iconButton("Close", "close", () => dialog.close())),
      intro && h("p", {}, intro), ...fields,
      why && field(reason, why, hint), error,
      h("footer", {}, button("Cancel", () => dialog.close()), go));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      go.disabled = true;
      error.textContent = "";
      try {
        result = await run(new FormData(form));
        dialog.close();
      } catch (problem) {
        error.textContent = problem.message;
        go.disabled = false;
      }
    });
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", class: wide ? "wide" : "", onclose: () => resolve(result) }, form);
    open(dialog);
    onopen?.(dialog, form);
    (form.querySelector("[autofocus]") ?? why ?? go).focus();
  });
}

/// A sheet at the side, for details of a row.
export function drawer(title, ...content) {
  const dialog = h("dialog", { class: "drawer", "aria-labelledby": "drawer-title" },
    h("header", {}, h("h2", { id: "drawer-title" }, title), iconButton("Close", "close", () => dialog.close())),
    ...content);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  // A link in it leads elsewhere.
  addEventListener("hashchange", () => dialog.close(), { once: true });
  return open(dialog);
}

let ended = false;
export function sessionEnded() {
  if (ended) return;
  ended = true;
  const again = h("button", { class: "primary", onclick: () => location.reload() }, "Log in again");
  // Browsers close a dialog at the second Escape, whatever becomes of the event.
  const dialog = h("dialog", { "aria-labelledby": "ended-title", oncancel: (event) => event.preventDefault(), onclose: () => dialog.showModal() },
    h("header", {}, h("h2", { id: "ended-title" }, "Your session has ended")),
    h("p", {}, "Nothing further is shown or changed until you log in again. What you have typed on this page is lost then."),
    h("footer", {}, again));
  document.body.append(dialog);
  dialog.showModal();
}
