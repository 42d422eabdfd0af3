"use strict";
// The start page: choose a line by instance type, distribution and so on, or by words.
// The choice is in the URL after #, so that it can be sent to somebody.
(() => {
  const data = window.kilnCatalog;
  const form = document.getElementById("choice");
  const list = document.getElementById("lines");
  const rows = data.lines.map((_, index) => document.getElementById(`line-${index}`));
  const others = document.getElementById("others");
  const MOST = 20;

  const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  // A number is the beginning of a word (79 is not 179), anything else may stand anywhere.
  const has = (text, asked) =>
    asked.every((word) => text.includes(/^\d+$/.test(word) ? ` ${word}` : word));

  function choose() {
    const chosen = Object.fromEntries(new FormData(form));
    const asked = words(chosen.q);
    const served = chosen.type ? data.types[chosen.type] || [] : null;
    const order = served || data.lines.map((_, index) => [index]);
    const shown = new Set();
    let looked = 0;
    for (const [index, warnings] of order) {
      const line = data.lines[index];
      looked += 1;
      const fits = ["distro", "flavor", "arch", "cuda"].every(
        (name) => !chosen[name] || line[name] === chosen[name]);
      if (!fits || !has(line.text, asked)) continue;
      shown.add(index);
      tellWarnings(rows[index], warnings);
    }
    // Rows are moved only where their order is not that of the choice.
    const wanted = [...shown, ...rows.keys()].filter((index, at, all) => all.indexOf(index) === at);
    wanted.forEach((index, at) => {
      if (list.children[at] !== rows[index]) list.insertBefore(rows[index], list.children[at] || null);
      rows[index].hidden = !shown.has(index);
    });
    const found = [];
    if (asked.length) {
      for (const entry of data.found) {
        looked += 1;
        if (has(entry[2], asked)) found.push(entry);
      }
    }
    tellOthers(found, chosen.q.trim().toLowerCase());
    document.getElementById("count").textContent =
      `${shown.size} of ${rows.length} lines` + (served ? `, best for ${chosen.type} first` : "") +
      (found.length ? `; also found: ${found.length}` : "");
    window.kilnLooked = looked;
    return chosen;
  }

  function tellWarnings(row, warnings) {
    row.querySelector(".warnings").hidden = !warnings;
    row.querySelector(".warnings dd").textContent = `${warnings}: ./invoke which`;
  }

  function tellOthers(found, query) {
    // The one that is called exactly so is first.
    found.sort((a, b) => (b[0].toLowerCase() === query) - (a[0].toLowerCase() === query));
    others.hidden = found.length === 0;
    others.querySelector("ul").replaceChildren(...found.slice(0, MOST).map(([label, page]) => {
      const link = document.createElement("a");
      link.href = page;
      link.textContent = label;
      const item = document.createElement("li");
      item.append(link);
      return item;
    }));
  }

  function remember(chosen) {
    const kept = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
    history.replaceState(null, "", `#${kept}`);
  }

  function recall() {
    const kept = new URLSearchParams(location.hash.slice(1));
    for (const field of form.elements) {
      if (field.name) field.value = kept.get(field.name) || "";
    }
    choose();
  }

  form.addEventListener("input", () => remember(choose()));
  form.addEventListener("reset", () => setTimeout(() => remember(choose())));
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", recall);
  recall();
})();
