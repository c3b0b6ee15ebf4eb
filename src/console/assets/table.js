// A table of any number of rows, of which only those in view are in the page.

import { h } from "./dom.js";

const phone = matchMedia("(max-width: 720px)");

/// `columns`: [{ key, label, cell(row), sort(row), class }]. `id(row)` names a row, for the selection.
/// `rowHeight` and `cardHeight` (on a phone, where a row is a card) must match the style.
export function virtualTable({ caption, columns, id, rowHeight = 41, cardHeight = 108, selectable, onselect, rowClass, signal }) {
  let rows = [], shown = [], from = 0, to = 0, order = null, descending = false, total = 0;
  const selected = new Set();
  const above = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: columns.length + (selectable ? 1 : 0) }));
  const below = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: columns.length + (selectable ? 1 : 0) }));
  const body = h("tbody", {});
  const all = selectable && h("input", { type: "checkbox", "aria-label": "Select all rows that are listed", onchange: () => {
    selected.clear();
    if (all.checked) for (const row of shown) selected.add(id(row));
    changed();
  } });
  const heads = columns.map((column) => {
    const label = column.sort ? h("button", { type: "button", class: "sort", onclick: () => sortBy(column) }, column.label) : h("span", { class: column.unseen ? "hidden" : null }, column.label);
    return h("th", { scope: "col", class: column.class ?? "" }, label);
  });
  const table = h("table", { class: "virtual" }, h("caption", { class: "hidden" }, caption),
    h("thead", {}, h("tr", {}, selectable && h("th", { scope: "col", class: "check" }, all), heads)), body);
  const view = h("div", { class: "view", tabindex: "0", role: "region", "aria-label": caption }, table);

  const tall = () => (phone.matches ? cardHeight : rowHeight);

  function line(row, index) {
    const key = id(row);
    const box = selectable && h("input", { type: "checkbox", "aria-label": `Select ${selectable(row)}`, checked: selected.has(key), onchange: (event) => {
      if (event.target.checked) selected.add(key); else selected.delete(key);
      changed(true);
    } });
    return h("tr", { "aria-rowindex": index + 2, class: rowClass?.(row) ?? "", data: { id: key } },
      selectable && h("td", { class: "check" }, box),
      columns.map((column, i) => h(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: column.class ?? "", data: { label: column.label } }, column.cell(row))));
  }

  function paint(force) {
    const height = tall();
    const first = Math.max(0, Math.floor(view.scrollTop / height) - 4);
    const last = Math.min(shown.length, first + Math.ceil((view.clientHeight || 600) / height) + 8);
    if (!force && first === from && last === to) return;
    from = first; to = last;
    // A control that has the focus keeps it when its row is drawn again.
    const active = document.activeElement?.closest?.("tr[data-id]");
    const focus = active && body.contains(active) ? [active.dataset.id, [...active.querySelectorAll("a,button,input")].indexOf(document.activeElement)] : null;
    above.firstChild.style.setProperty("height", `${first * height}px`);
    below.firstChild.style.setProperty("height", `${(shown.length - last) * height}px`);
    body.replaceChildren(...(first > 0 ? [above] : []), ...shown.slice(first, last).map((row, i) => line(row, first + i)), ...(last < shown.length ? [below] : []));
    table.setAttribute("aria-rowcount", shown.length + 1);
    if (focus) {
      const again = [...body.children].find((row) => row.dataset.id === focus[0]);
      again?.querySelectorAll("a,button,input")[focus[1]]?.focus();
    }
  }

  function changed(keepRows) {
    if (all) {
      all.checked = selected.size > 0 && selected.size === shown.length;
      all.indeterminate = selected.size > 0 && selected.size < shown.length;
    }
    if (!keepRows) paint(true);
    onselect?.(selected);
  }

  function arrange() {
    shown = rows;
    if (order) {
      const keyed = rows.map((row) => [order.sort(row), row]);
      keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (descending ? -1 : 1));
      shown = keyed.map(([, row]) => row);
    }
    columns.forEach((column, i) => {
      if (column === order) heads[i].setAttribute("aria-sort", descending ? "descending" : "ascending");
      else heads[i].removeAttribute("aria-sort");
    });
    paint(true);
  }

  function sortBy(column) {
    descending = order === column ? !descending : Boolean(column.descending);
    order = column;
    view.scrollTop = 0;
    arrange();
  }

  view.addEventListener("scroll", () => requestAnimationFrame(() => paint()), { passive: true });
  phone.addEventListener("change", () => paint(true), { signal });
  const watch = new ResizeObserver(() => paint());
  watch.observe(view);
  signal?.addEventListener("abort", () => watch.disconnect());

  return {
    element: view,
    selected,
    set(next) {
      rows = next;
      total = next.length;
      const known = new Set(rows.map(id));
      for (const key of selected) if (!known.has(key)) selected.delete(key);
      arrange();
      changed(true);
    },
    get rows() { return rows; },
    get total() { return total; },
    clear() { selected.clear(); changed(); },
  };
}
