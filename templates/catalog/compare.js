"use strict";
// Two images side by side: the same comparison as ./invoke diff, whose rules are in data.js.
(() => {
  const { severities } = window.kilnCatalog;
  const ORDER = ["high", "medium", "low"];
  const selects = ["a", "b"].map((name) => document.getElementById(name));
  const filter = document.getElementById("filter");
  const result = document.getElementById("result");
  const table = document.getElementById("differences");

  function load(key) {
    if (window.kilnImages && window.kilnImages[key]) return Promise.resolve(window.kilnImages[key]);
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `images/${key}.js`;
      script.addEventListener("load", () => resolve(window.kilnImages[key]));
      script.addEventListener("error", () => reject(new Error(`images/${key}.js is missing`)));
      document.head.append(script);
    });
  }

  const major = (version) => (/\d+/.exec(version || "") || [""])[0];

  function severity(kind, name, before, after) {
    for (const rule of severities) {
      if (rule.kind !== kind || !new RegExp(`^(?:${rule.name})$`).test(name)) continue;
      if (!rule.when || rule.when === "any" || (rule.when === "gone" && after === null) ||
          (rule.when === "major" && major(before) !== major(after))) return rule.severity;
    }
    return "low";
  }

  function without(these, those) {
    const left = [...these];
    for (const one of those) {
      const at = left.indexOf(one);
      if (at >= 0) left.splice(at, 1);
    }
    return left;
  }

  function compare(a, b) {
    const changes = [];
    for (const kind of Object.keys(a.facts).filter((each) => each in b.facts)) {
      const [before, after] = [a.facts[kind], b.facts[kind]];
      for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
        const gone = without(before[name] || [], after[name] || []);
        const come = without(after[name] || [], before[name] || []);
        const pairs = gone.length === 1 && come.length === 1 ? [[gone[0], come[0]]]
          : [...gone.map((value) => [value, null]), ...come.map((value) => [null, value])];
        for (const [was, is] of pairs) {
          changes.push({ severity: severity(kind, name, was, is), kind, name, was, is });
        }
      }
    }
    return changes.sort((x, y) => ORDER.indexOf(x.severity) - ORDER.indexOf(y.severity) ||
      `${x.kind} ${x.name}`.localeCompare(`${y.kind} ${y.name}`));
  }

  function cell(tag, text, className) {
    const made = document.createElement(tag);
    made.textContent = text === null ? "–" : text;
    if (className) made.className = className;
    return made;
  }

  let changes = [];
  function show() {
    const asked = filter.value.toLowerCase().trim();
    const found = changes.filter((one) => `${one.kind} ${one.name}`.toLowerCase().includes(asked));
    table.hidden = found.length === 0;
    table.tBodies[0].replaceChildren(...found.map((one) => {
      const row = document.createElement("tr");
      const head = cell("th", `${one.kind} ${one.name}`);
      head.scope = "row";
      row.append(cell("td", one.severity, one.severity), head, cell("td", one.was), cell("td", one.is));
      return row;
    }));
  }

  async function choose() {
    const [a, b] = selects.map((select) => select.value);
    if (!a || !b) return;
    history.replaceState(null, "", `#${new URLSearchParams({ a, b })}`);
    try {
      const images = [await load(a), await load(b)];
      changes = compare(...images);
      const count = ORDER.map((word) => [changes.filter((one) => one.severity === word).length, word])
        .filter(([number]) => number).map((pair) => pair.join(" "));
      const lacks = new Set([...Object.keys(images[0].facts), ...Object.keys(images[1].facts)]
        .filter((kind) => !(kind in images[0].facts && kind in images[1].facts)));
      result.textContent = (count.join(", ") || "No difference.") +
        (lacks.size ? ` Not compared, which one of the two does not record: ${[...lacks].join(", ")}.` : "");
    } catch (error) {
      changes = [];
      result.textContent = error.message;
    }
    show();
  }

  function recall() {
    const kept = new URLSearchParams(location.hash.slice(1));
    for (const select of selects) select.value = kept.get(select.id) || "";
    choose();
  }
  for (const select of selects) select.addEventListener("change", choose);
  filter.addEventListener("input", show);
  window.addEventListener("hashchange", recall);
  recall();
})();
