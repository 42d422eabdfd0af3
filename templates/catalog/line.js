"use strict";
// A line's page: choose a channel, copy a document, change its region, search the packages of the
// newest image.
(() => {
  const said = document.getElementById("copied");
  const launches = [...document.querySelectorAll(".launch")];

  const channel = document.getElementById("channel");
  if (channel) {
    const show = () => {
      for (const one of launches) one.hidden = one.dataset.channel !== channel.value;
    };
    channel.addEventListener("change", show);
    show();
  }

  async function copy(button) {
    const text = button.closest("details").querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
    } catch {
      getSelection().selectAllChildren(text);
      document.execCommand("copy");
    }
    said.textContent = `${text.getAttribute("aria-label")} is copied`;
  }
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", () => copy(button));
  }

  for (const launch of launches) {
    const region = launch.querySelector(".region");
    if (!region) continue;
    const documents = [...launch.querySelectorAll(".snippet pre")];
    const written = documents.map((one) => one.textContent);
    region.addEventListener("change", () => {
      const ami = region.selectedOptions[0].dataset.ami;
      documents.forEach((one, index) => {
        let text = written[index].replaceAll(region.dataset.was, region.value);
        if (region.dataset.ami && ami) text = text.replaceAll(region.dataset.ami, ami);
        one.textContent = text;
      });
    });
  }

  const field = document.getElementById("package");
  if (!field) return;
  const MOST = 200;
  let loading;
  function load() {
    loading ||= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `../images/${field.dataset.image}.js`;
      script.addEventListener("load", resolve);
      script.addEventListener("error", reject);
      document.head.append(script);
    });
    return loading;
  }
  field.addEventListener("input", async () => {
    await load();
    const packages = Object.entries(window.kilnImages[field.dataset.image].facts.package);
    const asked = field.value.toLowerCase().trim();
    const found = asked ? packages.filter(([name]) => name.toLowerCase().includes(asked)) : [];
    document.getElementById("package-count").textContent = asked ? `${found.length} found` : "";
    document.getElementById("packages").replaceChildren(
      ...found.slice(0, MOST).map(([name, versions]) => {
        const item = document.createElement("li");
        item.textContent = `${name} ${versions.join(", ")}`;
        return item;
      }));
  });
})();
