"use strict";
// The theme: what the system says, unless the reader chose otherwise.
(() => {
  const root = document.documentElement;
  // A page opened from a file may have no storage.
  const recall = () => { try { return localStorage.getItem("assay-theme"); } catch { return null; } };
  const remember = (choice) => { try { localStorage.setItem("assay-theme", choice); } catch { /* not remembered */ } };
  const apply = (choice) => {
    if (choice === "light" || choice === "dark") root.dataset.theme = choice;
    else delete root.dataset.theme;
  };
  apply(recall());
  document.addEventListener("DOMContentLoaded", () => {
    const chooser = document.querySelector(".theme");
    chooser.hidden = false;
    chooser.querySelector(`input[value="${root.dataset.theme || "auto"}"]`).checked = true;
    chooser.addEventListener("change", (event) => {
      apply(event.target.value);
      remember(event.target.value);
    });
  });
})();

// The table of trials: sorts by any column, filters by text, arm and status.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("#trial-table");
  if (!table) return;
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const rows = [...body.rows].map((element, position) => ({
    element,
    position,
    values: [...element.cells].map((cell) => cell.dataset.value ?? cell.textContent.trim()),
    text: element.textContent.toLowerCase(),
    arm: element.dataset.arm,
    status: element.dataset.status,
  }));
  const asNumber = (text) => {
    if (text === "inf") return Infinity;
    if (text === "-inf") return -Infinity;
    return text === "" || text === "nan" ? NaN : Number(text);
  };
  const words = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

  const sortBy = (column, descending) => {
    const keys = rows.map((row) => asNumber(row.values[column]));
    const numeric = rows.every((row, i) => !Number.isNaN(keys[i]) || ["", "nan"].includes(row.values[column]));
    const sign = descending ? -1 : 1;
    const compare = (a, b) => {
      const [left, right] = [a.values[column], b.values[column]];
      const [x, y] = [keys[a.position], keys[b.position]];
      const [noX, noY] = numeric ? [Number.isNaN(x), Number.isNaN(y)] : [left === "", right === ""];
      // What has no value comes last, whichever the direction.
      if (noX || noY) return noX - noY || a.position - b.position;
      const order = numeric ? Math.sign(x - y) || 0 : words.compare(left, right);
      return sign * order || a.position - b.position;
    };
    body.append(...[...rows].sort(compare).map((row) => row.element));
    headers.forEach((header, i) => {
      if (i === column) header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
  };
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      sortBy(column, header.getAttribute("aria-sort") === "ascending");
    });
  });

  const filters = document.querySelector(".filters");
  const [text, arm, status] = ["text", "arm", "status"].map((name) => filters.elements[name]);
  const shown = filters.querySelector("output");
  const filter = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const fits = (!arm.value || row.arm === arm.value.slice(1)) && (!status.value || row.status === status.value)
        && wanted.every((word) => row.text.includes(word));
      row.element.hidden = !fits;
      count += fits;
    }
    shown.textContent = `${count} of ${rows.length} shown`;
  };
  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = false;
  filter();
});
