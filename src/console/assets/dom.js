// Elements without markup: every text is a text node, whatever it contains.

const SVG = "http://www.w3.org/2000/svg";

const present = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else if (name === "checked") element.checked = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...present(children));
  return element;
}

/// Replaces what is in an element; what is null or false is left out.
export const render = (element, ...children) => element.replaceChildren(...present(children));

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

const PATHS = {
  unblock: "M6 9V6.500a4 4 0 0 1 7.500-2M4 9h12v8H4z",
  block: "M10 3a7 7 0 1 0 0 14a7 7 0 0 0 0-14M5 15L15 5",
  why: "M7.500 7.500a2.500 2.500 0 1 1 3.500 2.300q-1 .5-1 1.700M10 14.500v.5M10 2.500a7.500 7.500 0 1 0 0 15a7.500 7.500 0 0 0 0-15",
  note: "M4 3h12v10l-4 4H4zM12 17v-4h4M7 7h6M7 10h3",
  close: "M5 5l10 10M15 5L5 15",
  plus: "M10 4v12M4 10h12",
  pause: "M7 4v12M13 4v12",
  play: "M6 4l10 6-10 6z",
  export: "M10 3v9M6 9l4 4 4-4M4 16h12",
  edit: "M4 16l1-4 8-8 3 3-8 8z",
  trash: "M4 6h12M8 6V4h4v2M6 6l1 11h6l1-11",
  back: "M8 4L3 9l5 5M3 9h9a5 5 0 0 1 0 10h-1",
  refresh: "M16 10a6 6 0 1 1-2-4.500M16 3v4h-4",
  more: "M7 4l6 6-6 6",
};

export const icon = (name) => svg("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));

export const button = (label, onclick, { kind = "", symbol, ...properties } = {}) =>
  h("button", { type: "button", class: kind, onclick, ...properties }, symbol && icon(symbol), h("span", {}, label));

/// A button that shows an icon alone, and has a name all the same.
export const iconButton = (label, symbol, onclick, properties) =>
  h("button", { type: "button", class: "quiet icon-button", onclick, "aria-label": label, title: label, ...properties }, icon(symbol));

export const card = (title, properties, ...children) => {
  const heading = h("h2", {}, title);
  return h("section", { ...properties, class: `card ${properties?.class ?? ""}`, "aria-label": title }, heading, ...children);
};

export const empty = (title, text, ...more) => h("div", { class: "empty" }, h("b", {}, title), h("p", {}, text), ...more);

let ids = 0;
/// A labeled field: the input, its label, and a place for a hint or an error.
export function field(label, input, hint) {
  const id = input.id || `f${++ids}`;
  input.id = id;
  const note = h("small", { id: `${id}-hint`, class: "hint" }, hint ?? "");
  input.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: id }, label), input, note);
}

/// Marks a field as wrong, or as right.
export function mark(input, error) {
  const note = document.getElementById(`${input.id}-hint`);
  if (!note) return;
  note.dataset.hint ??= note.textContent;
  note.textContent = error ?? note.dataset.hint;
  note.classList.toggle("error", Boolean(error));
  if (error) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
}

export const select = (options, value, properties) =>
  h("select", properties, options.map(([key, label]) => h("option", { value: key, selected: key === value }, label)));

export function debounce(wait, call) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), wait);
  };
}
